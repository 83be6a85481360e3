"""Records of Kafka's own topics: records of real brokers, every schema and version, and hostile bytes."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.records import internal
from lastword.records.internal import TRANSACTION_STATES, InternalRecord, UndecodableError, decode
from lastword.tools.dump import dump
from tests.golden.loader import case, partition_files
from tests.support.exhaustive import few


def _schemas() -> dict[str, Any]:
    """Return {topic: {"record" | "key" | "value": {type: schema}}} of Kafka's schemas."""
    result: dict[str, Any] = {}
    for line in (files("lastword.protocol") / "schemas.jsonl").read_text().splitlines():
        source = json.loads(line)
        if "topic" in source:
            kind = "record" if source["type"] == "metadata" else source["type"].partition("-")[2]
            common = {struct["name"]: struct["fields"] for struct in source.get("commonStructs", ())}
            schema = {
                "name": source["name"],
                "versions": _range(source["validVersions"]),
                "flexible": _range(source["flexibleVersions"]),
                "fields": [_field(field, common) for field in source["fields"]],
            }
            result.setdefault(source["topic"], {}).setdefault(kind, {})[str(source["apiKey"])] = schema
    return result


def _field(source: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    tagged = source.get("taggedVersions")
    field: dict[str, Any] = {
        "name": source["name"][0].lower() + source["name"][1:],
        "type": source["type"],
        "versions": _range(source.get("versions", tagged)),
        "default": source.get("default"),
    }
    if "nullableVersions" in source:
        field["nullable"] = _range(source["nullableVersions"])
    if tagged is not None:
        field["tagged"] = _range(tagged)
        field["tag"] = source["tag"]
    nested = source.get("fields", common.get(source["type"].removeprefix("[]")))
    if nested is not None:
        field["fields"] = [_field(inner, common) for inner in nested]
    return field


def _range(text: str) -> list[int]:
    first, _, last = text.replace("+", "-32767").partition("-")
    return [1, 0] if text == "none" else [int(first), int(last or first)]


SCHEMAS = _schemas()
MESSAGES = [
    (topic, kind, key, version)
    for topic, kinds in SCHEMAS.items()
    for kind, by_key in kinds.items()
    for key, schema in by_key.items()
    for version in range(schema["versions"][0], schema["versions"][1] + 1)
]


def test_records_of_a_real_broker(tmp_path):
    """Every record of the internal topics of a clean directory fits a schema."""
    root = case("dir-clean").unpack(tmp_path)
    decoded: dict[str, list[InternalRecord]] = {}
    for path in partition_files(root):
        topic = path.parent.name.rpartition("-")[0]
        for batch in dump(path) if internal.is_internal(topic) else ():
            for record in batch.records:
                assert (record.decoded is None) == (record.control is not None)
                decoded.setdefault(topic, []).extend(filter(None, [record.decoded]))
    commits = decoded["__consumer_offsets"]
    assert [(c.key["group"], c.key["topic"], c.key["partition"], c.value["offset"]) for c in commits] == [
        ("readers", "orders", 1, 220),
        ("readers", "users", 0, 520),
        ("audit", "payments", 0, 706),
    ]
    transactions = decoded["__transaction_state"]
    assert {t.key["transactionalId"] for t in transactions} == {f"payments-t{n}" for n in range(3)}
    assert transactions[-1].value["transactionStatus"] == "CompleteCommit"
    topics = [r.value["name"] for r in decoded["__cluster_metadata"] if r.type == "TopicRecord"]
    assert {"orders", "users", "payments", "__consumer_offsets"} <= set(topics)


def test_records_of_an_old_broker(tmp_path):
    """Kafka 2.8 wrote version 3 of the values, which is not flexible."""
    root = case("dir-clean-kafka28").unpack(tmp_path)
    (path,) = (p for p in partition_files(root) if p.parent.name == "__consumer_offsets-0")
    ((record,),) = [batch.records for batch in dump(path)]
    assert record.decoded == InternalRecord(
        "OffsetCommit",
        {"group": "readers", "topic": "old", "partition": 0},
        {"offset": 150, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 1795245110319},
    )


def test_a_tombstone_has_a_key_and_no_value():
    key = b"\0\x02\0\x01g"
    assert decode("__consumer_offsets", key, None) == InternalRecord("GroupMetadata", {"group": "g"}, None)


def test_a_member_without_the_classic_protocol():
    """A null struct in a tagged field, as Kafka 4.3.1 writes it."""
    key = b"\0\5\0\1g\0\1m"
    value = bytes.fromhex("00000000026302680101ffffffff0672616e676501000100")
    record = decode("__consumer_offsets", key, value)
    assert record is not None and record.value["serverAssignor"] == "range"
    assert record.value["classicMemberMetadata"] is None


@pytest.mark.parametrize("topic, kind, key, version", MESSAGES)
def test_every_schema_and_version(topic, kind, key, version):
    """A writer of twenty lines in this file encodes each record independently."""
    rng = random.Random(f"{topic} {kind} {key} {version}")
    for _ in range(20):
        schema = SCHEMAS[topic][kind][key]
        fields = _random_fields(schema["fields"], version, rng)
        flexible = _covers(schema["flexible"], version)
        body = _encode(fields, schema["fields"], version, flexible)
        if kind == "record":
            record = decode(topic, None, b"\x01" + _uvarint(int(key)) + _uvarint(version) + body)
            assert record.value == fields
        elif kind == "key":
            assert decode(topic, struct.pack(">h", int(key)) + body, None).key == fields
        else:
            its_key = SCHEMAS[topic]["key"][key]
            key_fields = _random_fields(its_key["fields"], 0, rng)
            key_bytes = struct.pack(">h", int(key)) + _encode(key_fields, its_key["fields"], 0, False)
            record = decode(topic, key_bytes, struct.pack(">h", version) + body)
            state = fields.get("transactionStatus", -1)
            if 0 <= state < len(TRANSACTION_STATES):
                fields["transactionStatus"] = TRANSACTION_STATES[state]
            assert (record.key, record.value) == (key_fields, fields)


@settings(max_examples=few(300), deadline=None)
@given(st.sampled_from(sorted(SCHEMAS)), st.binary(max_size=60), st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(topic, key, value):
    with contextlib.suppress(UndecodableError):
        decode(topic, key, value)


def test_damaged_records_decode_or_are_refused(tmp_path):
    root = case("dir-clean").unpack(tmp_path)
    rng = random.Random(5)
    refused = 0
    for path in partition_files(root):
        topic = path.parent.name.rpartition("-")[0]
        for batch in dump(path) if internal.is_internal(topic) else ():
            for record in batch.records:
                if record.control is None and record.value:
                    value = bytearray(record.value)
                    value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
                    try:
                        decode(topic, record.key, bytes(value[: rng.randint(0, len(value))]))
                    except UndecodableError:
                        refused += 1
    assert refused > 50


def test_a_length_that_claims_too_much_allocates_nothing():
    huge = (
        b"\x01" + _uvarint(3) + _uvarint(0) + b"\0" * 20 + _uvarint((1 << 31) - 1)
    )  # PartitionRecord.replicas
    with pytest.raises(UndecodableError, match="elements"):
        decode("__cluster_metadata", None, huge)


def test_credentials_are_not_shown():
    record = InternalRecord(
        "ConfigRecord",
        {},
        {"resourceType": 4, "resourceName": "", "name": "ssl.keystore.password", "value": "x"},
    )
    assert record.is_secret and record.masked().value["value"] == "****"
    scram = InternalRecord(
        "UserScramCredentialRecord", {}, {"name": "ada", "storedKey": b"k", "iterations": 1}
    )
    assert scram.masked().value == {"name": "ada", "storedKey": "****", "iterations": 1}
    plain = InternalRecord("ConfigRecord", {}, {"name": "cleanup.policy", "value": "compact"})
    assert not plain.is_secret and plain.masked() is plain


# ---------------------------------------------------------------- the independent writer


def _covers(versions: list[int], version: int) -> bool:
    return versions[0] <= version <= versions[1]


def _random_fields(fields: list[dict[str, Any]], version: int, rng: random.Random) -> dict[str, Any]:
    """Return random values; half of the tagged fields, and those at their default, are absent."""
    result = {}
    for field in fields:
        if _covers(field["versions"], version) and not (_tagged(field, version) and rng.random() < 0.5):
            value = _random_value(field, field["type"], version, rng)
            if not _tagged(field, version) or value != _default(field, version):
                result[field["name"]] = value
    return result


def _default(field: dict[str, Any], version: int) -> Any:
    if field["default"] == "null":
        return None
    if field["type"].startswith("[]"):
        return []
    if "fields" in field:
        return {f["name"]: _default(f, version) for f in field["fields"] if _covers(f["versions"], version)}
    empty = {"string": "", "uuid": "A" * 22}
    return empty[field["type"]] if field["type"] in empty else int(field["default"] or 0)


def _random_value(field: dict[str, Any], kind: str, version: int, rng: random.Random) -> Any:
    if "nullable" in field and _covers(field["nullable"], version) and rng.random() < 0.3:
        return None
    if kind.startswith("[]"):
        inner = {name: value for name, value in field.items() if name != "nullable"}
        return [_random_value(inner, kind[2:], version, rng) for _ in range(rng.randint(0, 3))]
    if kind in ("int8", "int16", "int32", "int64"):
        bits = int(kind[3:])
        return rng.choice([0, -1, (1 << bits - 1) - 1, -(1 << bits - 1)])
    if kind in ("uint16", "uint32"):
        return rng.choice([0, (1 << int(kind[4:])) - 1])
    simple = {
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.choice([0.0, -1.5]),
        "string": lambda: rng.choice(["", "ä", "x" * 200]),
        "bytes": lambda: rng.randbytes(rng.choice([0, 3, 200])),
        "uuid": lambda: "irRpZm22Q6ahEBC1ZzWOyA",
    }
    return simple[kind]() if kind in simple else _random_fields(field["fields"], version, rng)


def _tagged(field: dict[str, Any], version: int) -> bool:
    return "tagged" in field and _covers(field["tagged"], version)


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encode(values: dict[str, Any], fields: list[dict[str, Any]], version: int, flexible: bool) -> bytes:
    out, tagged = b"", []
    for field in fields:
        if field["name"] in values:
            data = _encode_value(values[field["name"]], field, field["type"], version, flexible)
            if _tagged(field, version):
                tagged.append((field["tag"], data))
            else:
                out += data
    if flexible:
        tagged.append((1000, b"of a newer Kafka"))
        out += _uvarint(len(tagged))
        for tag, data in sorted(tagged):
            out += _uvarint(tag) + _uvarint(len(data)) + data
    return out


def _encode_value(value: Any, field: dict[str, Any], kind: str, version: int, flexible: bool) -> bytes:
    import base64

    forms = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q"}
    if kind.startswith("[]"):
        inner = {name: value for name, value in field.items() if name != "nullable"}
        items = [_encode_value(item, inner, kind[2:], version, flexible) for item in value or ()]
        return _length(None if value is None else len(value), "i", flexible) + b"".join(items)
    if kind in forms:
        return struct.pack(">" + forms[kind], value)
    if kind == "float64":
        return struct.pack(">d", value)
    if kind == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    if kind in ("string", "bytes"):
        data = value.encode() if isinstance(value, str) else value
        length = None if data is None else len(data)
        return _length(length, "h" if kind == "string" else "i", flexible) + (data or b"")
    if "nullable" in field and _covers(field["nullable"], version):
        if value is None:
            return b"\0" if _tagged(field, version) else b"\xff"
        return b"\x01" + _encode(value, field["fields"], version, flexible)
    return _encode(value, field["fields"], version, flexible)


def _length(length: int | None, form: str, flexible: bool) -> bytes:
    if flexible:
        return _uvarint(0 if length is None else length + 1)
    return struct.pack(">" + form, -1 if length is None else length)
