"""Messages beside Kafka's own classes, and the generated tables beside Kafka's jars; one JVM for all."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lastword.protocol import Request, codec
from lastword.protocol.codes import REQUEST_TIMED_OUT
from lastword.protocol.refusals import error_answer
from lastword.protocol.schemas import APIS, Field, schema_of, within
from tests.kafka.conftest import generator
from tests.protocol.random_messages import EVERY, random_message
from tests.support.jars import KafkaJars

JAVA = Path(__file__).parents[1] / "protocol" / "java"
EACH = 6
PLANTED = (
    ("SaslHandshakeRequest", 0, b"\0\x05PLAI", {"mechanism": "PLAIN"}),  # a byte is missing
    ("HeartbeatResponse", 1, struct.pack(">ih", 7, 0), {"throttleTimeMs": 0, "errorCode": 7}),  # exchanged
)


APART = ("Produce", "Fetch", "Metadata")  # the server's handlers refuse the parts of these requests
OF_ADMINISTRATORS = (
    *("DescribeAcls", "CreateAcls", "DeleteAcls", "CreateDelegationToken", "DescribeUserScramCredentials"),
    *("DescribeClientQuotas", "AlterClientQuotas", "AlterReplicaLogDirs", "ElectLeaders", "WriteTxnMarkers"),
    *("ListPartitionReassignments", "AlterPartitionReassignments"),
)
"""APIs with an own answer for every request. Kafka reads some enumerations as it parses, and repeats more."""


@dataclass(frozen=True)
class Answers:
    """The error codes, and for each message: case, our bytes, Kafka's from our bytes, Kafka's from JSON.

    For each request that is refused: the request, and Kafka's bytes.
    """

    codes: str
    rows: list[tuple[str, bytes, str, str | None]]
    planted: list[tuple[str, bytes, str, str | None]]
    refused: list[tuple[Request, str]]


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
    requests = []
    for api in (api for api in APIS.values() if api.name not in (*APART, *OF_ADMINISTRATORS)):
        for version in range(api.first, api.last + 1):
            body = random_message(f"{api.name}Request", version, rng)
            data = codec(f"{api.name}Request", version).encode(body)
            requests.append(Request(api, version, 0, None, body, len(data)))
            lines.append(f"refuse\t{version}\t{data.hex()}\t{api.key}\t{REQUEST_TIMED_OUT}")
    path = tmp_path_factory.mktemp("messages") / "messages.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = kafka_jars.command("Messages", sources=JAVA)
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    codes, _, printed = done.stdout.partition("\n\n")
    answered = [line.split("\t") for line in printed.splitlines()]
    rows = [
        (case, data, columns[0], columns[1] if len(columns) > 1 else None)
        for (case, data), columns in zip(cases, answered, strict=False)
    ]
    refused = [
        (request, columns[0]) for request, columns in zip(requests, answered[len(cases) :], strict=True)
    ]
    return Answers(codes, rows[: -len(PLANTED)], rows[-len(PLANTED) :], refused)


def _class(name: str) -> str:
    if name.endswith("Record"):
        return f"org.apache.kafka.common.metadata.{name}"
    if name.endswith(("Key", "Value")):
        coordinator = "transaction" if name.startswith("TransactionLog") else "group"
        coordinator = "share" if name.startswith(("ShareSnapshot", "ShareUpdate")) else coordinator
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


def test_the_tables_are_those_of_the_jars(kafka_jars: KafkaJars, answers: Answers) -> None:
    script = generator("make_protocol.py")
    for name, text in script["texts"](kafka_jars.directory, script["parsed_errors"](answers.codes)).items():
        assert (script["TARGET"] / name).read_text(encoding="utf-8") == text, "run make_protocol.py"


def test_a_request_is_refused_as_kafka_refuses_it(answers: Answers) -> None:
    """The faults of `lastword.testing.Broker`; the messages and an epoch without a meaning differ."""
    different = []
    for request, theirs in answers.refused:
        text = codec(f"{request.api.name}Response", request.version)
        ours = text.decode(text.encode(error_answer(request, REQUEST_TIMED_OUT, "")))
        shown = [
            re.sub(r"(error_message|throttle_time_ms)=('[^']*'|\"[^\"]*\"|\w+)", "", repr(answer))
            for answer in (ours, text.decode(bytes.fromhex(theirs)))
        ]
        if request.api.name == "DescribeTransactions":
            shown = [answer.replace("producer_epoch=-1", "producer_epoch=0") for answer in shown]
        if shown[0] != shown[1]:
            different.append((request.api.name, request.version, *shown))
    assert len(answers.refused) > 150 and not different
