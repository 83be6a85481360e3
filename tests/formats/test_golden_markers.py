"""Comparison of `MarkerTracker` with the transactions that Kafka's cleaner removed, round by round."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.files import DEFAULT
from lastword.partition import snapshots
from lastword.partition.producer_state import Producer
from lastword.partition.transactions import BatchOutcome, Decisions, MarkerTracker
from lastword.records.batch import BatchHeader
from lastword.segment import indexes
from tests.formats import logs
from tests.golden import loader

CASES = ["tx-compact-dr0", "tx-compact-retain"]


def partition_of(root: Path) -> Path:
    (directory,) = (p for p in root.iterdir() if p.is_dir())
    return directory


def rests_on(producer: Producer, header: BatchHeader) -> bool:
    """Return whether the entry of a producer depends on a batch.

    It does if it is the producer's last data batch or, for a producer without data, a marker of its epoch: a
    snapshot does not say which marker was the newest.
    """
    if producer.batches:
        return header.last_offset == producer.batches[-1].last_offset
    return header.control and header.producer_epoch == producer.epoch


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_markers_data_and_index_entries_after_a_round(name: str, number: int, tmp_path: Path) -> None:
    case = loader.case(name)
    root = case.unpack(tmp_path)
    before, after = (partition_of(root / f"round{number}-{side}") for side in ("before", "after"))
    checkpoint = (root / f"round{number}-after" / "cleaner-offset-checkpoint").read_text().split()
    end = int(checkpoint[-1])
    batches = [(header, marker) for header, marker, _ in logs.partition(before) if header.last_offset < end]
    survived = {header.last_offset: header for header, _, _ in logs.partition(after)}
    entries = [
        entry
        for path in sorted(before.glob("*.txnindex"))
        for entry in indexes.decode_aborted(path.read_bytes(), path.name)
    ]
    decisions, tracker = Decisions(entries), MarkerTracker()
    kept_markers = set()
    store = snapshots.Snapshots(DEFAULT, str(before))
    producers = {producer.producer_id: producer for producer in store.read(store.offsets()[-1])}
    retained_data = 0
    for header, marker in batches:
        there = survived.get(header.last_offset)
        producer = producers.get(header.producer_id)
        must_stay = (producer is not None and rests_on(producer, header)) or header.next_offset == end
        if not header.control:
            tracker.data(header)
            if decisions.of_header(header) is BatchOutcome.ABORTED:
                assert there is None or (must_stay and there.count == 0)
            elif there is not None:
                retained_data += 1
            continue
        may_go = tracker.control(header, marker)
        if not may_go:
            kept_markers.add((header.producer_id, header.last_offset))
        due = may_go and header.delete_horizon_ms is not None and case.config["delete.retention.ms"] == "0"
        if due:
            assert there is None or (must_stay and there.count == 0)
        elif marker is None:
            assert there is None or must_stay
        else:
            assert there is not None and there.count == 1
            assert (there.delete_horizon_ms is not None) == may_go
    assert retained_data > 0
    kept = [
        entry
        for path in sorted(after.glob("*.txnindex"))
        for entry in indexes.decode_aborted(path.read_bytes(), path.name)
        if entry.last_offset < end
    ]
    assert [entry for entry in entries if (entry.producer_id, entry.last_offset) in kept_markers] == kept
