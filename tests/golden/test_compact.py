"""Cleaning what Kafka's cleaner cleaned: the newest record of every key stays, and as much garbage goes as
there.

Each round begins with the directory as Kafka had it before its own round, and is compared with what Kafka
left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.records.record import RawRecord
from tests.golden import loader
from tests.support.partitions import clean_partition, log_end, records_of

CASES = (*loader.names("compact-none-*"), *loader.names("compact-lz4-*"), "md5-collision")
ROUNDS = [(case, number) for case in CASES for number in (1, 2, 3)]
MD5_CASE = "md5-collision"


@dataclass(frozen=True)
class Cleaned:
    """A round of ours: Kafka's records before and after its own, and ours after."""

    now_ms: int
    before: list[dict[str, Any]]
    kafka: list[dict[str, Any]]
    ours: list[RawRecord]
    report: Any
    end_before: int
    end_after: int

    @property
    def our_offsets(self) -> set[int]:
        return {record.offset for record in self.ours}


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def run(name: str, number: int) -> Cleaned:
        case = loader.case(name)
        before, after = f"round{number}-before", f"round{number}-after"
        root = case.unpack(tmp_path_factory.mktemp(name), before) / before
        directory = root / f"{name}-0"
        # the moment of Kafka's own round: every horizon that the round before had set has passed by then
        now_ms = max(facts["mtime_ms"] for facts in case.facts["files"][after].values())
        end_before = log_end(directory)
        report = clean_partition(
            directory, config(case), ManualClock(now_ms), first_dirty=first_dirty(root, name)
        )
        return Cleaned(
            now_ms,
            case.expected(before),
            case.expected(after),
            records_of(directory),
            report,
            end_before,
            log_end(directory),
        )

    return run


def config(case: loader.Case) -> TopicConfig:
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=int(case.config["internal.segment.bytes"]),
        segment_index_bytes=int(case.config["segment.index.bytes"]),
        index_interval_bytes=int(case.config["index.interval.bytes"]),
        delete_retention_ms=int(case.config["delete.retention.ms"]),
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


def horizons(name: str, number: int) -> dict[int, int]:
    """Delete horizon by base offset of the batch, as Kafka's earlier rounds set them."""
    batches = loader.case(name).batches(f"round{number}-before")
    return {line["baseOffset"]: line["deleteHorizonMs"] for line in batches if "deleteHorizonMs" in line}


every_round = pytest.mark.parametrize(("name", "number"), ROUNDS)


@every_round
def test_the_newest_record_of_every_key_is_kept(name: str, number: int, cleaned: Any) -> None:
    """A tombstone alone may go, once the horizon that an earlier round gave it has passed."""
    done = cleaned(name, number)
    due = horizons(name, number)
    there = {record.offset: record for record in done.ours}
    for line in newest(done.before).values():
        record = there.get(line["offset"])
        if record is None:
            assert line["value"] is None, f"the newest value of {line['key']!r} at {line['offset']} is lost"
            assert due[line["baseOffset"]] <= done.now_ms, f"the tombstone at {line['offset']} went too early"
        else:
            assert record.key == line["key"]


@every_round
def test_every_record_that_is_kept_is_unchanged_at_its_offset(name: str, number: int, cleaned: Any) -> None:
    done = cleaned(name, number)
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


@every_round
def test_no_superseded_record_stays_that_kafka_dropped(name: str, number: int, cleaned: Any) -> None:
    done = cleaned(name, number)
    last = {key: line["offset"] for key, line in newest(done.before).items()}
    superseded = {line["offset"] for line in done.before if line["offset"] < last[line["key"]]}
    dropped_by_kafka = superseded - {line["offset"] for line in done.kafka}
    assert dropped_by_kafka, "Kafka dropped nothing: the case would show nothing"
    assert dropped_by_kafka & done.our_offsets == set()
    assert done.report.removed.superseded >= len(dropped_by_kafka)


@every_round
def test_tombstones_go_when_kafka_lets_them_go(name: str, number: int, cleaned: Any) -> None:
    """Of the keys whose newest record is a tombstone."""
    done = cleaned(name, number)
    tombstones = {line["offset"] for line in newest(done.before).values() if line["value"] is None}
    gone_in_kafka = tombstones - {line["offset"] for line in done.kafka}
    assert gone_in_kafka & done.our_offsets == set()


def test_both_keys_of_one_md5_keep_their_newest_value(cleaned: Any) -> None:
    """Kafka loses the live value of one of them in its first round, of the other in its third."""
    lost_by_kafka = []
    for number in (1, 2, 3):
        done = cleaned(MD5_CASE, number)
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


@pytest.mark.parametrize("name", CASES)
def test_a_second_round_finds_nothing_more(name: str, cleaned: Any, tmp_path: Path) -> None:
    case = loader.case(name)
    directory = case.unpack(tmp_path, "round1-before") / "round1-before" / f"{name}-0"
    now_ms = max(facts["mtime_ms"] for facts in case.facts["files"]["round1-after"].values())
    clock = ManualClock(now_ms)
    clean_partition(directory, config(case), clock)
    once = records_of(directory)
    for _ in range(2):
        clean_partition(directory, config(case), clock)
    again = records_of(directory)
    if case.config["delete.retention.ms"] == "0":
        assert [r for r in once if r.value is not None] == again
    else:
        assert once == again
