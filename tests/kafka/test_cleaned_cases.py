"""Directories that Kafka wrote, cleaned by lastword and served by Kafka.

They include transactions and messages of magic 0 and 1. Each case is cleaned until nothing changes any more,
so that markers and tombstones passed through all their stages.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.records.record import RawRecord
from tests.golden import loader
from tests.golden.test_compact import CASES, aborted_and_undecided, config, moment
from tests.support.kafka import Broker, Consumed, Tools, adopt, complaints
from tests.support.partitions import clean_partition, records_of

DAY_MS = 86_400_000
ROUNDS = 4
OLD = re.compile(
    r"offset: \d+ position: \d+ \w+: -?\d+ size: \d+ magic: [01] compresscodec: \w+ .*isvalid: true"
)
"""The line that the tool prints for a sound entry of magic 0 or 1."""


@dataclass
class Cleaned:
    ours: list[RawRecord]
    hidden: set[int]  # offsets of aborted and undecided records
    stable: int | None  # first offset of an undecided transaction
    printed: str  # output of Kafka's dump tool
    served: dict[str, Consumed]  # by isolation level


@pytest.fixture(scope="module")
def cleaned(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cleaned]:
    root = tmp_path_factory.mktemp("cases")
    broker = Broker(tools, root / "logs", {"log.cleaner.enable": "false"})
    with broker:
        broker.create_topics({name: {"cleanup_policy": "compact"} for name in CASES})
    cases = {name: _clean(name, root, tools) for name in CASES}
    for name in CASES:
        adopt(broker.directory, f"{name}-0", root / "cleaned" / f"{name}-0")
    with broker:
        for isolation in ("read_uncommitted", "read_committed"):
            for partition, seen in broker.consume(*CASES, isolation=isolation).items():
                cases[partition.removesuffix("-0")].served[isolation] = seen
    return cases


def _clean(name: str, root: Path, tools: Tools) -> Cleaned:
    case = loader.case(name)
    stage = max(stage for stage in case.stages if stage.endswith("-before"))
    source = case.unpack(root / name, stage) / stage / f"{name}-0"
    clock = ManualClock(moment(case, int(stage[5])))
    recorded: list[int] = []
    for _ in range(ROUNDS):
        first_dirty = recorded[-1] if recorded else None
        clean_partition(source, config(case), clock, first_dirty=first_dirty, recorded=recorded)
        clock.advance(DAY_MS)
    target = root / "cleaned" / f"{name}-0"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lastword"))
    printed = tools.dump_log(loader.partition_files(target), "--deep-iteration")
    for extension in (".index", ".timeindex", ".txnindex", ".snapshot"):
        if files := loader.partition_files(target, extension):
            printed += tools.dump_log(files)
    aborted, undecided = aborted_and_undecided(case.expected(stage), case.indexes(stage))
    stable = min(undecided) if undecided else None
    return Cleaned(records_of(target), aborted | undecided, stable, printed, {})


@pytest.mark.parametrize("name", CASES)
def test_the_dump_tool_finds_nothing_wrong(name: str, cleaned: dict[str, Cleaned]) -> None:
    lines = [line for line in complaints(cleaned[name].printed, emptied=True) if not OLD.fullmatch(line)]
    assert lines == []


@pytest.mark.parametrize("name", CASES)
def test_a_consumer_of_everything(name: str, cleaned: dict[str, Cleaned]) -> None:
    case = cleaned[name]
    seen = case.served["read_uncommitted"].records
    assert [(r.offset, r.key, r.value) for r in seen] == [(r.offset, r.key, r.value) for r in case.ours]
    assert [r.timestamp for r in seen] == [r.timestamp for r in case.ours]


@pytest.mark.parametrize("name", CASES)
def test_a_consumer_of_what_is_committed(name: str, cleaned: dict[str, Cleaned]) -> None:
    case = cleaned[name]
    seen = case.served["read_committed"]
    end = case.stable if case.stable is not None else seen.end
    assert seen.end == end
    expected = [r.offset for r in case.ours if r.offset not in case.hidden and r.offset < end]
    assert [r.offset for r in seen.records] == expected
