"""Old formats and transactions through the source: the records that Kafka gives at both isolation levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.golden.loader import case, names, value_matches
from tests.golden.test_formats import partitions
from tests.spark.conftest import read_directly

pytestmark = pytest.mark.slow  # every case that Kafka wrote would take too long: `make check` has one minute

LEGACY = [*names("v0-*"), *names("v1-*"), *names("upgrade-*")]
TRANSACTIONAL = names("tx-*")
TYPES = {"CreateTime": 0, "LogAppendTime": 1, "NoTimestampType": -1}


def shown(name: str, stage: str, isolation: str) -> list[dict[str, Any]]:
    return partitions(name, stage)[name, 0].shown(isolation)


def same(rows: list[Any], lines: list[dict[str, Any]]) -> None:
    assert [row["offset"] for row in rows] == [line["offset"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert (row["key"], row["timestampType"]) == (line["key"], TYPES[line["timestampType"]])
        assert value_matches(line, row["value"])


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        *((name, "read_committed") for name in (*LEGACY, *TRANSACTIONAL)),
        *((name, "read_uncommitted") for name in TRANSACTIONAL),  # the older formats have no transactions
    ],
)
def test_every_record_that_kafka_shows(name: str, isolation: str, tmp_path: Path) -> None:
    root = case(name).unpack(tmp_path)
    for stage in case(name).stages:
        lines = shown(name, stage, isolation)
        for options in ({}, {"maxRecordsPerPartition": "50"}):
            same(read_directly(root / stage, subscribe=name, isolationLevel=isolation, **options), lines)
        newest = {line["key"]: line for line in lines if line["key"] is not None}
        alive = sorted(
            (line for line in newest.values() if line.get("value", b"") is not None),
            key=lambda x: x["offset"],
        )
        same(read_directly(root / stage, subscribe=name, view="newest", isolationLevel=isolation), alive)
