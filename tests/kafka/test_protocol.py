"""Messages beside Kafka's own classes, and the generated tables beside Kafka's jars; one JVM for all."""

from __future__ import annotations

import base64
import importlib.util
import json
import random
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lastword.protocol import codec
from lastword.protocol.schemas import Field, schema_of, within
from tests.protocol.random_messages import EVERY, random_message
from tests.support.jars import KafkaJars

JAVA = Path(__file__).parents[1] / "protocol" / "java"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_protocol.py"
EACH = 6
PLANTED = (
    ("SaslHandshakeRequest", 0, b"\0\x05PLAI", {"mechanism": "PLAIN"}),  # a byte is missing
    ("HeartbeatResponse", 1, struct.pack(">ih", 7, 0), {"throttleTimeMs": 0, "errorCode": 7}),  # exchanged
)


@dataclass(frozen=True)
class Answers:
    """The error codes, and for each message: case, our bytes, Kafka's from our bytes, Kafka's from JSON."""

    codes: str
    rows: list[tuple[str, bytes, str, str | None]]
    planted: list[tuple[str, bytes, str, str | None]]


@pytest.fixture(scope="module")
def answers(kafka_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    rng = random.Random(16)
    cases, lines = [], []
    for name, version in EVERY:
        text = codec(name, version)
        for _ in range(EACH):
            message = random_message(name, version, rng)
            data = text.encode(message)
            columns = [_class(name), str(version), data.hex()]
            if not text.has_records:  # their converters leave out records
                columns.append(json.dumps(_to_json(message, schema_of(name).fields, version)))
            cases.append((f"{name} v{version}: {message}", data))
            lines.append("\t".join(columns))
    for name, version, data, fields in PLANTED:
        cases.append((f"{name} v{version}: planted", data))
        lines.append("\t".join((_class(name), str(version), data.hex(), json.dumps(fields))))
    path = tmp_path_factory.mktemp("messages") / "messages.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [
        kafka_jars.java,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        kafka_jars.compiled(JAVA),
    ]
    done = subprocess.run([*command, "Messages", str(path)], capture_output=True, text=True, check=True)
    codes, _, printed = done.stdout.partition("\n\n")
    answered = [line.split("\t") for line in printed.splitlines()]
    rows = [
        (case, data, columns[0], columns[1] if len(columns) > 1 else None)
        for (case, data), columns in zip(cases, answered, strict=True)
    ]
    return Answers(codes, rows[: -len(PLANTED)], rows[-len(PLANTED) :])


def _class(name: str) -> str:
    if name.endswith(("Key", "Value")):
        coordinator = "transaction" if name.startswith("TransactionLog") else "group"
        return f"org.apache.kafka.coordinator.{coordinator}.generated.{name}"
    suffix = "" if name.startswith("ConsumerProtocol") else "Data"
    return f"org.apache.kafka.common.message.{name}{suffix}"


def _to_json(message: Any, fields: list[Field], version: int) -> dict[str, Any]:
    """Return the fields as Kafka's JSON converters read them."""
    return {
        field.kafka_name[0].lower() + field.kafka_name[1:]: _value(
            getattr(message, field.name), field, version
        )
        for field in fields
        if within(field.versions, version)
    }


def _value(value: Any, field: Field, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_value(element, field, version) for element in value]
    if field.struct is not None:
        return _to_json(value, field.fields, version)
    if field.kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return base64.b64encode(value).decode() if field.kind == "bytes" else value


def test_kafkas_classes_read_our_bytes_and_write_the_same(answers: Answers) -> None:
    assert len(answers.rows) == len(EVERY) * EACH
    wrong = [(case, data.hex(), theirs) for case, data, theirs, _ in answers.rows if theirs != data.hex()]
    assert not wrong, wrong[:3]


def test_kafkas_classes_write_our_bytes_for_the_same_fields(answers: Answers) -> None:
    compared = [row for row in answers.rows if row[3] is not None]
    assert len(compared) > 0.9 * len(answers.rows)
    wrong = [(case, data.hex(), theirs) for case, data, _, theirs in compared if theirs != data.hex()]
    assert not wrong, wrong[:3]


def test_the_comparison_finds_planted_faults(answers: Answers) -> None:
    (_, _, short, _), (_, exchanged, same, from_fields) = answers.planted
    assert "Exception" in short or "Error" in short
    assert same == exchanged.hex() != from_fields


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_protocol", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_jars(
    script: ModuleType, kafka_jars: KafkaJars, answers: Answers
) -> None:
    parsed: Callable[[str], Any] = script.parsed_errors
    for name, text in script.texts(kafka_jars.directory, parsed(answers.codes)).items():
        assert (script.TARGET / name).read_text(encoding="utf-8") == text, f"run {SCRIPT.name}"
