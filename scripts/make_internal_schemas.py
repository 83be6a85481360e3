"""Write `src/lastword/records/internal_schemas.json` from the schemas inside Kafka's own jars.

    python scripts/make_internal_schemas.py DIRECTORY_WITH_JARS

Kafka ships the schemas of its records as JSON files: those of `__cluster_metadata` in kafka-metadata, of
`__consumer_offsets` in kafka-group-coordinator, of `__transaction_state` in kafka-transaction-coordinator and
of `__share_group_state` in kafka-share-coordinator. The result keeps names, types and versions, and drops the
rest. `tests/kafka/test_internal_topics.py` fails when the file is not what these jars give.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src" / "lastword" / "records" / "internal_schemas.json"
SOURCES = {
    "__cluster_metadata": ("kafka-metadata-*.jar", "common/metadata/"),
    "__consumer_offsets": ("kafka-group-coordinator-[0-9]*.jar", "common/message/"),
    "__transaction_state": ("kafka-transaction-coordinator-*.jar", "common/message/"),
    "__share_group_state": ("kafka-share-coordinator-*.jar", "common/message/"),
}
NEWEST = 32767


def schemas(jars: Path) -> dict[str, Any]:
    """Return {topic: {"record" | "key" | "value": {api key: schema}}} of the jars in a directory."""
    result: dict[str, Any] = {}
    for topic, (pattern, prefix) in SOURCES.items():
        (jar,) = jars.glob(pattern)
        with zipfile.ZipFile(jar) as archive:
            for name in sorted(archive.namelist()):
                if name.startswith(prefix) and name.endswith(".json"):
                    source = json.loads(_without_comments(archive.read(name).decode()))
                    kind = "record" if source["type"] == "metadata" else source["type"].partition("-")[2]
                    if kind in ("record", "key", "value"):
                        kinds = result.setdefault(topic, {}).setdefault(kind, {})
                        kinds[str(source["apiKey"])] = _schema(source)
    return result


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def _schema(source: dict[str, Any]) -> dict[str, Any]:
    common = {struct["name"]: struct["fields"] for struct in source.get("commonStructs", ())}
    return {
        "name": source["name"],
        "versions": _range(source["validVersions"]),
        "flexible": _range(source["flexibleVersions"]),
        "fields": [_field(field, common) for field in source["fields"]],
    }


def _field(source: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    tagged = source.get("taggedVersions")
    field: dict[str, Any] = {
        "name": source["name"][0].lower() + source["name"][1:],
        "type": source["type"],
        "versions": _range(source.get("versions", tagged)),
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
    """Return [first, last] of "3", "0-2" or "1+"; an empty range for "none"."""
    if text == "none":
        return [1, 0]
    if text.endswith("+"):
        return [int(text[:-1]), NEWEST]
    first, _, last = text.partition("-")
    return [int(first), int(last or first)]


def text_of(jars: Path) -> str:
    """Return the file's text: one line for each schema."""
    lines = []
    for topic, kinds in schemas(jars).items():
        rows = [
            f'  "{kind}": {{\n'
            + ",\n".join(
                f'   "{key}": {json.dumps(schema, separators=(",", ":"))}'
                for key, schema in sorted(by_key.items(), key=lambda item: int(item[0]))
            )
            + "\n  }"
            for kind, by_key in sorted(kinds.items())
        ]
        lines.append(f' "{topic}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text_of(Path(sys.argv[1])), encoding="utf-8")
    print(f"wrote {TARGET}")
