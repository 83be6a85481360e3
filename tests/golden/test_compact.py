"""Cleaning of the directories that Kafka's cleaner cleaned.

The newest record of every key stays, and at least the garbage that Kafka removed goes. Each round begins with
the directory as Kafka had it before its own round, with its checkpoint, at the time of its own round, and is
compared with the directory that Kafka left. Every case is cleaned by each strategy: "now", which closes the
active segment too, and by strategy `kafka` also "due", which takes the segments that Kafka took. Messages of
magic 0, 1 and 2, with and without transactions. `make test` takes every third pair of a round and a strategy.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.config.tables import STRATEGIES
from lastword.files import DEFAULT
from lastword.records.record import RawRecord
from lastword.segment.recover import inspect
from tests.golden import loader
from tests.support.exhaustive import stride
from tests.support.partitions import clean_partition, log_end, records_of

pytestmark = pytest.mark.slow  # every case that Kafka wrote; `make check` has a minute

CASES = [
    name
    for pattern in ("compact-*", "tx-compact-*", "tx-rolled-by-time", "offset-gap", "md5-collision")
    for name in loader.names(pattern)
]
KAFKAS_OWN = "kafka-due"
HOW = (KAFKAS_OWN, *(f"{strategy}-now" for strategy in STRATEGIES))
ROUNDS = [
    (name, number, how)
    for name in CASES
    for number in (1, 2, 3)
    if f"round{number}-before" in loader.case(name).stages
    for how in HOW
]
BY_STRATEGY = [(name, strategy) for name in CASES for strategy in STRATEGIES]
MD5_CASE = "md5-collision"
FOREVER_MS = 1 << 62
TOMBSTONES_BY_FILE_TIME = ("tx-compact-kafka28-dr0", "compact-upgrade-dr0")
"""Kafka 2.8.2 has no delete horizon: it removes tombstones of magic 2 by the time of their file."""
NOTHING_SUPERSEDED = {("tx-rolled-by-time", n) for n in (1, 2)} | {("compact-insert-only", n) for n in (2, 3)}


@dataclass(frozen=True)
class Cleaned:
    """A round of lastword: Kafka's data records before and after its own round, and ours after it."""

    now_ms: int
    before: list[dict[str, Any]]
    kafka: list[dict[str, Any]]
    ours: list[RawRecord]
    report: Any
    end_before: int
    end_after: int
    aborted: set[int]  # offsets
    undecided: set[int]

    @property
    def our_offsets(self) -> set[int]:
        return {record.offset for record in self.ours}

    @property
    def committed(self) -> list[dict[str, Any]]:
        return [line for line in self.before if line["offset"] not in self.aborted | self.undecided]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(name: str, number: int, how: str) -> Cleaned:
        case = loader.case(name)
        before, after = f"round{number}-before", f"round{number}-after"
        root = case.unpack(tmp_path_factory.mktemp(name), before) / before
        directory = root / f"{name}-0"
        end_before = log_end(directory)
        now_ms = moment(case, number)
        strategy, when = how.split("-")
        report = clean_partition(
            directory,
            config(case),
            ManualClock(now_ms),
            first_dirty=first_dirty(root, name),
            due=when == "due",
            strategy=strategy,
        )
        lines = case.expected(before)
        aborted, undecided = aborted_and_undecided(lines, case.indexes(before))
        return Cleaned(
            now_ms,
            data_of(lines),
            data_of(case.expected(after)),
            records_of(directory),
            report,
            end_before,
            log_end(directory),
            aborted,
            undecided,
        )

    return run


def data_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if not line["isControl"]]


def moment(case: loader.Case, number: int) -> int:
    """Return the time of Kafka's round, from which it computed its horizons; else the end of that run."""
    before = set(horizons(case.name, f"round{number}-before").values())
    new = set(horizons(case.name, f"round{number}-after").values()) - before
    if new:
        return max(new) - int(case.config["delete.retention.ms"])
    return max(facts["mtime_ms"] for facts in case.facts["files"][f"round{number}-after"].values())


def aborted_and_undecided(
    lines: list[dict[str, Any]], indexes: list[dict[str, Any]]
) -> tuple[set[int], set[int]]:
    """Return the offsets of aborted and of undecided records, by Kafka's indexes and by the markers."""
    entries = [line for line in indexes if line["file"].endswith(".txnindex")]
    aborted, open_ = set(), defaultdict(set)
    for line in lines:
        offset, producer_id = line["offset"], line["producerId"]
        if line["isControl"]:
            open_.pop(producer_id, None)
        elif line["isTransactional"]:
            open_[producer_id].add(offset)
            if any(
                e["producerId"] == producer_id and e["firstOffset"] <= offset <= e["lastOffset"]
                for e in entries
            ):
                aborted.add(offset)
    return aborted, set().union(*open_.values())


def config(case: loader.Case) -> TopicConfig:
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=int(case.config.get("internal.segment.bytes") or case.config["segment.bytes"]),
        segment_index_bytes=int(case.config["segment.index.bytes"]),
        index_interval_bytes=int(case.config["index.interval.bytes"]),
        delete_retention_ms=int(case.config["delete.retention.ms"]),
        min_cleanable_dirty_ratio=float(case.config["min.cleanable.dirty.ratio"]),
        segment_ms=FOREVER_MS,  # only the test rolls segments
        file_delete_delay_ms=0,
    )


def first_dirty(root: Path, name: str) -> int | None:
    checkpoint = root / "cleaner-offset-checkpoint"
    if not checkpoint.exists():
        return None
    for line in checkpoint.read_text().splitlines()[2:]:
        topic, number, offset = line.split()
        if (topic, number) == (name, "0"):
            return int(offset)
    return None


def newest(lines: Iterable[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    return {line["key"]: line for line in lines}


def live(view: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in view.items() if value is not None}


def horizons(name: str, stage: str) -> dict[int, int]:
    """Return the delete horizons that Kafka's rounds had set by then, by base offset of the batch."""
    batches = loader.case(name).batches(stage)
    return {line["baseOffset"]: line["deleteHorizonMs"] for line in batches if "deleteHorizonMs" in line}


@pytest.mark.parametrize(("name", "number", "how"), ROUNDS[:: stride(3)])
def test_a_round_beside_kafkas(name: str, number: int, how: str, cleaned: Any) -> None:
    done = cleaned(name, number, how)
    the_newest_record_of_every_key_is_kept(done, name, number, how)
    both_views_are_those_that_kafka_left(done, name, how)
    every_record_that_is_kept_is_unchanged_at_its_offset(done)
    nothing_stays_that_kafka_dropped(done, name, number)
    tombstones_go_when_kafka_lets_them_go(done, name, how)


def the_newest_record_of_every_key_is_kept(done: Cleaned, name: str, number: int, how: str) -> None:
    """Only a tombstone may go, and only after its time.

    This time is the horizon that an earlier round set, in old formats the time of its file. By garbage
    accounts its time begins when the log has no older record of its key, which may be immediately.
    """
    clocks = horizons(name, f"round{number}-before")
    there = {record.offset: record for record in done.ours}
    for line in newest(done.committed).values():
        record = there.get(line["offset"])
        if record is None:
            assert line["value"] is None, f"the newest value of {line['key']!r} at {line['offset']} is lost"
            if not how.startswith("kafka"):
                assert "-retain" not in name, f"{line['offset']} went too early"
            elif line["magic"] == 2:
                assert clocks[line["baseOffset"]] <= done.now_ms, f"{line['offset']} went too early"
            else:
                assert "retain" not in name, f"the tombstone at {line['offset']} went too early"
        else:
            assert record.key == line["key"]


def both_views_are_those_that_kafka_left(done: Cleaned, name: str, how: str) -> None:
    """The newest value of each key is equal: over committed records and, for equal segments, over all."""
    hidden = done.aborted | done.undecided
    mine = newest_values((r.offset, r.key, r.value) for r in done.ours if r.offset not in hidden)
    theirs = newest_values(as_triples(line for line in done.kafka if line["offset"] not in hidden))
    before = newest_values(as_triples(done.committed))
    assert live(mine) == live(before)
    if name != MD5_CASE:
        assert live(mine) == live(theirs)
    if how == KAFKAS_OWN and name != MD5_CASE:
        all_mine = newest_values((r.offset, r.key, r.value) for r in done.ours)
        assert live(all_mine) == live(newest_values(as_triples(done.kafka)))


def as_triples(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[int, bytes, bytes | None]]:
    for line in lines:
        yield line["offset"], line["key"], line["value"]


def newest_values(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> dict[Any, bytes | None]:
    return {key: value for _, key, value in sorted(records, key=lambda record: record[0])}


def every_record_that_is_kept_is_unchanged_at_its_offset(done: Cleaned) -> None:
    lines = {line["offset"]: line for line in done.before}
    for record in done.ours:
        line = lines[record.offset]
        assert (record.timestamp, record.key, record.headers) == (
            line["timestamp"],
            line["key"],
            line["headers"],
        )
        assert loader.value_matches(line, record.value)
    offsets = [record.offset for record in done.ours]
    assert offsets == sorted(set(offsets))
    assert done.end_after == done.end_before


def nothing_stays_that_kafka_dropped(done: Cleaned, name: str, number: int) -> None:
    """A round removes the superseded and the aborted records that Kafka removed."""
    last = {key: line["offset"] for key, line in newest(done.committed).items()}
    superseded = {line["offset"] for line in done.committed if line["offset"] < last[line["key"]]}
    kept_by_kafka = {line["offset"] for line in done.kafka}
    dropped = superseded - kept_by_kafka
    assert bool(dropped) == ((name, number) not in NOTHING_SUPERSEDED)
    assert dropped & done.our_offsets == set()
    assert (done.aborted - kept_by_kafka) & done.our_offsets == set()
    if done.report is not None:
        assert done.report.removed.superseded >= len(dropped)
        assert done.report.removed.aborted >= len(done.aborted - kept_by_kafka)
        gone = len(done.before) - len(done.ours)
        assert done.report.removed.total - done.report.removed.marker == gone


def tombstones_go_when_kafka_lets_them_go(done: Cleaned, name: str, how: str) -> None:
    """The test covers keys whose newest record is a tombstone.

    By garbage accounts, a tombstone goes a round later if this round first had to remove an older record of
    its key.
    """
    tombstones = {
        line["offset"]
        for line in newest(done.committed).values()
        if line["value"] is None and (line["magic"] < 2 or name not in TOMBSTONES_BY_FILE_TIME)
    }
    if not how.startswith("kafka"):
        keys = [line["key"] for line in done.before]
        tombstones = {line["offset"] for line in done.before if keys.count(line["key"]) == 1} & tombstones
    gone_in_kafka = tombstones - {line["offset"] for line in done.kafka}
    assert gone_in_kafka & done.our_offsets == set()


@pytest.mark.parametrize("how", HOW)
def test_both_keys_of_one_md5_keep_their_newest_value(how: str, cleaned: Any) -> None:
    """Kafka loses the live value of one of them in its first round, of the other in its third."""
    lost_by_kafka = []
    for number in (1, 2, 3):
        done = cleaned(MD5_CASE, number, how)
        by_digest: dict[bytes, set[bytes]] = {}
        for line in done.before:
            by_digest.setdefault(hashlib.md5(line["key"]).digest(), set()).add(line["key"])
        ours = {record.key: record.value for record in done.ours}
        for keys in by_digest.values():
            for key in keys:
                assert ours[key] == newest(done.before)[key]["value"]
        kafka = {line["key"] for line in done.kafka}
        lost_by_kafka.append(len({line["key"] for line in done.before} - kafka))
    assert lost_by_kafka == [1, 0, 1], "the case does not show what it is there for"


@pytest.mark.parametrize(("name", "strategy"), BY_STRATEGY[:: stride(3)])
def test_rounds_reach_a_fixed_point(name: str, strategy: str, tmp_path: Path) -> None:
    """With a frozen clock: data goes, markers and tombstones get a horizon, markers go, then no change."""
    case = loader.case(name)
    stage = next(stage for stage in case.stages if stage.endswith("-before"))
    directory = case.unpack(tmp_path, stage) / stage / f"{name}-0"
    clock = ManualClock(moment(case, int(stage[5])))
    recorded: list[int] = []
    trees = []
    for _ in range(6):
        clean_partition(
            directory,
            config(case),
            clock,
            first_dirty=(recorded or [None])[-1],
            recorded=recorded,
            strategy=strategy,
        )
        trees.append({path.name: path.read_bytes() for path in loader.partition_files(directory)})
    assert trees[4] == trees[5]
    assert len(trees[-1]) <= len(trees[0])
    keys = [record.key for record in records_of(directory) if record.offset < recorded[-1]]
    assert len(set(keys)) == len(keys) > 0


@pytest.mark.parametrize(("name", "strategy"), BY_STRATEGY[1 % stride(3) :: stride(3)])
def test_indexes_are_those_that_recovery_builds(name: str, strategy: str, tmp_path: Path) -> None:
    """The test checks the offset and time index of every segment that a round wrote."""
    case = loader.case(name)
    stage = next(stage for stage in case.stages if stage.endswith("-before"))
    directory = case.unpack(tmp_path, stage) / stage / f"{name}-0"
    there = {path.name for path in loader.partition_files(directory)}
    inodes = {path.name: path.stat().st_ino for path in loader.partition_files(directory)}
    clock = ManualClock(moment(case, int(stage[5])))
    clean_partition(directory, config(case), clock, strategy=strategy)
    written = [
        path for path in loader.partition_files(directory) if inodes.get(path.name) != path.stat().st_ino
    ]
    interval = int(case.config["index.interval.bytes"])
    compared = 0
    for path in written:
        if path.name not in there:
            continue  # the segment that the round opened
        inspection = inspect(DEFAULT, str(directory), int(path.stem), index_interval_bytes=interval)
        assert inspection.damage is None
        assert path.with_suffix(".index").read_bytes() == inspection.offset_entries
        assert path.with_suffix(".timeindex").read_bytes() == inspection.time_entries
        compared += 1
    assert compared
