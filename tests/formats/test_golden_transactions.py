"""Transactions in the logs that Kafka wrote.

Outcomes, index entries and snapshots are equal to those that Kafka had on disk.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from lastword.files import DEFAULT
from lastword.partition import snapshots
from lastword.partition.producer_state import Producer, ProducerState
from lastword.segment import indexes
from lastword.segment.indexes import AbortedTransaction
from tests.formats import logs
from tests.golden import loader
from tests.golden.test_directories import WITH_PRODUCERS

NEVER_CLEANED = [("tx-delete", "data")] + [(name, "round1-before") for name in loader.names("tx-compact*")]
NEVER_CLEANED += [("tx-rolled-by-time", "round1-before"), ("compact-idempotent-dr0", "round1-before")]


def unpacked(name: str, stage: str, target: Path) -> Path:
    (directory,) = (p for p in (loader.case(name).unpack(target, stage) / stage).iterdir() if p.is_dir())
    return directory


def listed_snapshots(name: str, stage: str) -> dict[str, list[dict[str, Any]]]:
    by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in loader.case(name).indexes(stage):
        if line["file"].endswith(".snapshot"):
            entries = by_file[line["file"]]
            if "producerId" in line:
                entries.append(line)
    return by_file


def as_listed(producer: Producer) -> dict[str, Any]:
    return {
        "producerId": producer.producer_id,
        "producerEpoch": producer.epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "lastTimestamp": producer.last_timestamp,
        "currentTxnFirstOffset": producer.transaction_start,
        "batches": [
            {
                "firstSeq": batch.first_sequence,
                "lastSeq": batch.last_sequence,
                "firstOffset": batch.first_offset,
                "lastOffset": batch.last_offset,
            }
            for batch in producer.batches[-1:]
        ],
    }


def comparable(line: dict[str, Any]) -> dict[str, Any]:
    kept = {key: line[key] for key in as_listed(Producer(0))}
    return kept | {"batches": [{k: v for k, v in b.items() if k != "timestamp"} for b in line["batches"]]}


@pytest.mark.parametrize(("name", "stage"), NEVER_CLEANED)
def test_replay_gives_every_snapshot_and_index_entry(name: str, stage: str, tmp_path: Path) -> None:
    directory = unpacked(name, stage, tmp_path)
    listed = listed_snapshots(name, stage)
    state = ProducerState()
    aborted: dict[str, list[AbortedTransaction]] = defaultdict(list)
    compared = 0
    for header, marker, path in logs.partition(directory):
        entries = listed.get(f"{header.base_offset:020d}.snapshot")
        if entries is not None:
            assert [as_listed(p) for p in state.producers] == sorted(
                map(comparable, entries), key=lambda line: line["producerId"]
            )
            compared += 1
        entry = state.update(header, marker)
        if entry is not None:
            aborted[path.with_suffix(".txnindex").name].append(entry)
    at_end = listed.get(f"{state.end_offset:020d}.snapshot")
    if at_end is not None:
        assert [as_listed(p) for p in state.producers] == sorted(
            map(comparable, at_end), key=lambda line: line["producerId"]
        )
        compared += 1
    assert compared == len(listed) > 0
    expected = {
        path.name: indexes.decode_aborted(path.read_bytes(), path.name)
        for path in directory.glob("*.txnindex")
    }
    assert {file: entries for file, entries in expected.items() if entries} == dict(aborted)
    for file, entries in expected.items():
        assert indexes.encode_aborted(entries) == (directory / file).read_bytes()


@pytest.mark.parametrize(("name", "stage"), WITH_PRODUCERS)
def test_replay_from_any_snapshot_leads_to_the_last_one(name: str, stage: str, tmp_path: Path) -> None:
    """A start-up loads a snapshot and replays later batches, also in cleaned logs without old batches."""
    directory = unpacked(name, stage, tmp_path)
    batches = list(logs.partition(directory))
    log_end = batches[-1][0].next_offset
    store = snapshots.Snapshots(DEFAULT, str(directory))
    last = store.offsets()[-1]
    assert last == log_end
    expected = {p.producer_id: as_listed(p) for p in store.read(last)}
    now_ms = int((directory / f"{last:020d}.snapshot").stat().st_mtime * 1000)
    for offset in store.offsets():
        state = ProducerState(offset, store.read(offset))
        for header, marker, _ in batches:
            if header.base_offset >= offset:
                state.update(header, marker)
        # Kafka drops idle producers when it loads a snapshot (after a day; these data have old timestamps).
        idle = {p.producer_id for p in state.producers if p.is_expired(now_ms, 86_400_000)}
        producers = {p.producer_id: as_listed(p) for p in state.producers}
        assert {k: v for k, v in producers.items() if k in expected or k not in idle} == expected
