"""Write the tables of `src/lastword/protocol/` from Kafka's own jars.

    python scripts/make_protocol.py DIRECTORY_WITH_JARS

Kafka ships the schemas of its messages as JSON files: requests, responses and headers in kafka-clients, the
records of its own topics in kafka-metadata and in a jar of each coordinator. Three files result:

    schemas.jsonl   one line for each message: Kafka's schema without comments and descriptions, and its topic
    codes.py        the error codes, which Kafka's class `Errors` lists
    messages.pyi    the fields of each message but those that are only decoded, for type checkers and editors

`tests/kafka/test_protocol.py` fails when a file is not what these jars give.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lastword.protocol.schemas import snake

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "lastword" / "protocol"
JAVA = ROOT / "tests" / "protocol" / "java" / "Messages.java"
JARS = {
    "kafka-clients-*.jar": "",
    "kafka-metadata-*.jar": "__cluster_metadata",
    "kafka-group-coordinator-[0-9]*.jar": "__consumer_offsets",
    "kafka-transaction-coordinator-*.jar": "__transaction_state",
    "kafka-share-coordinator-*.jar": "__share_group_state",
}
"""The jars, and the topic whose records have the schemas of each."""
DECODED = ("__cluster_metadata", "__share_group_state")
"""Topics whose records lastword decodes, and does not write."""

APIS = (
    *("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator"),
    *("JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups", "SaslHandshake"),
    *("SaslAuthenticate", "ApiVersions", "CreateTopics", "DeleteTopics", "DeleteRecords", "InitProducerId"),
    *("OffsetForLeaderEpoch", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
    *("DescribeConfigs", "IncrementalAlterConfigs", "AlterConfigs", "CreatePartitions", "DescribeLogDirs"),
    *("DeleteGroups", "OffsetDelete", "DescribeCluster", "DescribeProducers", "DescribeTransactions"),
    *("ListTransactions", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "DescribeTopicPartitions"),
    *("DescribeAcls", "CreateAcls", "DeleteAcls", "CreateDelegationToken", "RenewDelegationToken"),
    *("ExpireDelegationToken", "DescribeDelegationToken", "DescribeUserScramCredentials"),
    *("DescribeClientQuotas", "AlterClientQuotas", "AlterReplicaLogDirs", "ElectLeaders", "DescribeQuorum"),
    *("ListPartitionReassignments", "AlterPartitionReassignments", "ListConfigResources", "WriteTxnMarkers"),
)
OTHERS = ("RequestHeader", "ResponseHeader", "ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
DROPPED = ("about", "entityType", "listeners", "mapKey", "zeroCopy")

PYTHON = {"string": "str", "bytes": "Buffer", "bool": "bool", "float64": "float", "uuid": "bytes"}


def schemas(jars: Path) -> dict[str, dict[str, Any]]:
    """Return {name: schema} of the messages that the server needs, sorted by name."""
    wanted = {f"{api}{kind}" for api in APIS for kind in ("Request", "Response")} | set(OTHERS)
    result = {}
    for pattern, topic in JARS.items():
        (jar,) = jars.glob(pattern)
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                found = re.fullmatch(r"common/(?:message|metadata)/(\w+)\.json", path)
                if found is None or not (topic or found[1] in wanted):
                    continue
                text = re.sub(r"^\s*//.*$", "", archive.read(path).decode(), flags=re.MULTILINE)
                schema = _stripped(json.loads(text))
                if not topic or schema["type"] in ("coordinator-key", "coordinator-value", "metadata"):
                    name = schema.pop("name")  # first, so that a search for a line finds it
                    result[name] = {"name": name, **({"topic": topic} if topic else {}), **schema}
    assert wanted <= set(result), wanted - set(result)
    return dict(sorted(result.items()))


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _stripped(value) for key, value in schema.items() if key not in DROPPED}
    return schema


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the text of schemas.jsonl."""
    return "".join(json.dumps(schema, separators=(",", ":")) + "\n" for schema in found.values())


def codes(errors: list[tuple[int, str, bool]]) -> str:
    """Return the text of codes.py."""
    lines = [
        '"""Kafka\'s error codes. Written by `scripts/make_protocol.py`: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    lines += [f"{name} = {code}" for code, name, _ in errors]
    names = "{code: name for name, code in dict(globals()).items() if isinstance(code, int)}"
    lines += ["", f"ERROR_NAMES = {names}"]
    lines += [
        "",
        "RETRIABLE = frozenset(",
        "    {",
        *(f"        {name}," for _, name, again in errors if again),
    ]
    return "\n".join([*lines, "    }", ")"]) + "\n"


def errors_of(jars: Path, java: str = "java") -> list[tuple[int, str, bool]]:
    """Return (code, name, retriable) of Kafka's errors; starts a JVM."""
    command = [java, "-cp", f"{jars}/*", str(JAVA)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return parsed_errors(done.stdout)


def parsed_errors(printed: str) -> list[tuple[int, str, bool]]:
    """Return (code, name, retriable) of the lines that Messages.java prints."""
    rows = (line.split("\t") for line in printed.splitlines())
    return sorted((int(code), name, again == "true") for code, name, again in rows)


def stub(found: dict[str, dict[str, Any]]) -> str:
    """Return the text of messages.pyi."""
    lines = [
        "# Written by `scripts/make_protocol.py`: do not edit.",
        "from collections.abc import Sequence",
        "from typing import TypeAlias",
        "",
        "from lastword.protocol.codecs import FileRange",
        "from lastword.protocol.schemas import Message",
    ]
    lines += ["", "Buffer: TypeAlias = bytes | bytearray | memoryview"]
    for name, schema in found.items():
        if schema.get("topic") in DECODED:
            continue
        lines += ["", f"class {name}(Message):"]
        structs: dict[str, list[dict[str, Any]]] = {}
        for struct in schema.get("commonStructs", ()):
            structs[struct["name"]] = struct["fields"]
        _collect(schema["fields"], structs)
        for struct_name, fields in structs.items():
            lines += [f"    class {struct_name}(Message):", *_members(fields, name, "        ")]
        lines += _members(schema["fields"], name, "    ")
    return "\n".join(lines) + "\n"


def _collect(fields: list[dict[str, Any]], structs: dict[str, list[dict[str, Any]]]) -> None:
    for field in fields:
        if "fields" in field:
            structs[field["type"].removeprefix("[]")] = field["fields"]
            _collect(field["fields"], structs)


def _members(fields: list[dict[str, Any]], message: str, indent: str) -> Iterator[str]:
    if not fields:
        yield f"{indent}pass"
        return
    for field in fields:
        yield f"{indent}{snake(field['name'])}: {_annotation(field, message)} = ..."


def _annotation(field: dict[str, Any], message: str) -> str:
    element = field["type"].removeprefix("[]")
    if element == "records":
        return "Buffer | Sequence[Buffer | FileRange] | None"
    kind = PYTHON.get(element) or ("int" if re.fullmatch(r"u?int\d+", element) else f"{message}.{element}")
    if field["type"] != element:
        kind = f"list[{kind}]"
    return f"{kind} | None" if "nullableVersions" in field else kind


def texts(jars: Path, errors: list[tuple[int, str, bool]]) -> dict[str, str]:
    """Return {file name: text} of the three files."""
    found = schemas(jars)
    texts = {"schemas.jsonl": table(found), "codes.py": codes(errors), "messages.pyi": stub(found)}
    for name in ("codes.py", "messages.pyi"):
        command = [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--quiet",
            "--stdin-filename",
            str(TARGET / name),
            "-",
        ]
        texts[name] = subprocess.run(
            command, input=texts[name], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    return texts


def main(jars: Path) -> None:
    """Write the three files."""
    for name, text in texts(jars, errors_of(jars)).items():
        (TARGET / name).write_text(text, encoding="utf-8")
        print(f"wrote {TARGET / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
