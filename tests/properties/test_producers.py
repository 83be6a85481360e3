"""6G: the sequences of a producer survive the cleaning of its records."""

from __future__ import annotations

from pathlib import Path

from lastword.segment import names
from tests.build import LogBuilder
from tests.cleaner.test_transactions import state_of
from tests.cleaner.transactional import Producer
from tests.properties.strategies import by_strategy


def compacted(root: Path, strategy: str) -> LogBuilder:
    """Clean a log with four producers whose records are all superseded; segments are merged."""
    log = LogBuilder(root)
    for producer_id in range(1, 5):
        producer = Producer(log, producer_id)
        producer.put(("a", 1), ("b", 1), transactional=False).put(("a", 2), ("b", 2), transactional=False)
        log.roll()
    log.put("a", "newest").put("b", "newest").roll()
    log.clean(strategy=strategy)
    assert log.offsets() == [16, 17]
    return log


@by_strategy
def test_6G_63_a_last_batch_sent_again_is_answered_with_its_offsets(tmp_path: Path, strategy: str) -> None:
    """6G.63: If the last batch of a producer is sent again after a reload, the answer has the original
    offsets, even if its records are gone.
    """
    log = compacted(tmp_path, strategy).reopen()
    end = log.log.log_end
    for producer_id in range(1, 5):
        again = Producer(log, producer_id)
        again.sequence = 2
        again.put(("a", 2), ("b", 2), transactional=False)
    assert log.log.log_end == end and log.offsets() == [16, 17]
    log.close()


@by_strategy
def test_6G_67_a_truncation_rebuilds_the_original_last_sequence(tmp_path: Path, strategy: str) -> None:
    """6G.67: Rebuilding the producer state from a compacted batch after a truncation gives the original
    last sequence.
    """
    log = LogBuilder(tmp_path)
    producer = Producer(log)
    producer.put(("a", 1), ("b", 1), ("c", 1), transactional=False)  # offsets 0-2; only b stays
    log.put("a", 2).put("c", 2).roll()
    log.clean(strategy=strategy)
    producer.put(("d", 1), transactional=False)
    assert state_of(log) == {7: (0, 3, 5)}
    log.log.truncate_to(5)
    assert state_of(log) == {7: (0, 2, 2)} and log.offsets() == [1, 3, 4]
    log.close()


@by_strategy
def test_6G_69_snapshots_are_those_of_the_segments_that_are_left(tmp_path: Path, strategy: str) -> None:
    """6G.69: After cleaning merged segments, the only snapshots left are those of the remaining segments."""
    log = compacted(tmp_path, strategy)
    bases = {segment.base_offset for segment in log.log.segments}
    kept = {int(path.name[:20]) for path in Path(log.directory).glob(f"*{names.SNAPSHOT}")}
    assert len(bases) < 6, "segments were merged"
    assert kept <= bases | {log.log.log_end}
    log.close()
