"""docs/spark.md has every option and function, its examples are accepted, and its Python runs as printed."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import lastword
import lastword.spark
from lastword.config import parse_topic_settings
from lastword.spark.options import READ, STREAM, WRITE

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
FUNCTIONS = next(block for block in BLOCKS if "lastword.spark.audit(" in block)
RUNNABLE = [block for block in BLOCKS if block is not FUNCTIONS and "s3://" not in block]
TABLES = {"Reading": READ, "Streams": STREAM, "Writing": WRITE}


def rows_of(heading: str) -> dict[str, list[str]]:
    """Return option -> examples, from the table with examples below a heading."""
    part = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = part.split("| option | for example |")[1].split("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {re.findall("`(.*?)`", row[0])[0]: re.findall("`(.*?)`", row[1]) for row in rows}


def test_every_option_is_there() -> None:
    assert set(rows_of("Reading")) == set(READ)
    assert set(rows_of("Streams")) == set(STREAM) - set(READ)
    assert set(rows_of("Writing")) == set(WRITE) | {"cleanup.policy"}


@pytest.mark.parametrize("heading", TABLES)
def test_every_example_is_taken(heading: str) -> None:
    for option, examples in rows_of(heading).items():
        assert examples, option
        for example in examples:
            if option in TABLES[heading]:
                TABLES[heading][option](example)
            else:
                parse_topic_settings({option: example})


def test_every_function_is_there() -> None:
    """Their calls run in test_inspect.py and test_clean.py."""
    compile(FUNCTIONS, "docs/spark.md", "exec")
    called = set(re.findall(r"lastword\.spark\.(\w+)\(", FUNCTIONS))
    assert called == set(lastword.spark.__all__) - {"register", "session", "update_stream"}


def write_descriptors(path: Path) -> None:
    """Write what protoc writes for the message of the page."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    assert "message Place { string city = 1; optional int64 population = 2; }" in TEXT
    files = FileDescriptorSet()
    file = files.file.add(name="place.proto", package="example", syntax="proto3")
    place = file.message_type.add(name="Place")
    place.oneof_decl.add(name="_population")
    place.field.add(name="city", number=1, label=1, type=FieldDescriptorProto.TYPE_STRING)
    place.field.add(
        name="population",
        number=2,
        label=1,
        type=FieldDescriptorProto.TYPE_INT64,
        oneof_index=0,
        proto3_optional=True,
    )
    path.write_bytes(files.SerializeToString())


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_blocks_run(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lastword.spark, "session", lambda: spark)
    data = tmp_path / "data"
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", cleanup_policy="compact")
        users.extend([(b"ada", b"1"), (b"bob", b"1"), (b"ada", b"2"), (b"bob", None)])
    (tmp_path / "schemas").mkdir()
    schema = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    schema["fields"].append({"name": "population", "type": ["null", "long"]})
    (tmp_path / "schemas" / "1.avsc").write_text(json.dumps(schema))
    for file in ("place.desc", "schemas/2.desc"):
        write_descriptors(tmp_path / file)
    known: dict[str, Any] = {"spark": spark}
    for block in RUNNABLE:
        if ("avroSchema" in block or "confluent" in block) and find_spec("fastavro") is None:
            continue
        for name in ("data", "checkpoint", "counting", "snapshot", "schemas", "place.desc"):
            block = block.replace(f'"{name}"', repr(str(tmp_path / name)))
        exec(block, known)
    assert [(bytes(row.key), bytes(row.value)) for row in known["newest"].collect()] == [(b"ada", b"2")]
    with lastword.open(data) as logs:
        merged = [(r.key, r.value) for r in logs.topic("merged").read()]
        assert sorted(merged, key=str) == [(b"ada", b"2"), (b"bob", None)]
        assert {r.key: r.value for r in logs.topic("counts").read()} == {b"ada": "2", b"bob": "2"}
        assert dict(logs.state("places")) == {"ada": "London"}
        people = [(r.key, r.value and (r.value["op"], r.value["after"])) for r in logs.topic("people").read()]
        ada = ("c", {"name": "Ada", "city": "London"})
        assert people == [("1", ada), ("2", ("c", {"name": "Bob"})), ("3", ("d", None)), ("3", None)]
    schema = known["messages"].schema["value"].dataType
    assert schema.simpleString() == "struct<city:string,population:bigint>" and not schema["city"].nullable
    for name in ("messages", "served"):
        assert [tuple(row.value) for row in known[name].collect()] == [("London", None)]
    rows = known["people"].selectExpr("CAST(key AS STRING) AS key", "value.city").collect()
    assert sorted((row.key, row.city) for row in rows) == [("1", "London"), ("2", None)]
    assert [tuple(row) for row in known["towns"].collect()] == [("eve", "Oslo")]
    assert [row.number for row in known["since"].collect()] == [2.5]
    assert '"users": {"0": 4}' in capsys.readouterr().out
