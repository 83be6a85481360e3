"""6F: transactions over several rounds. The other numbers are in `cleaner/test_transactions.py`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.build import HOUR, LogBuilder
from tests.cleaner.transactional import Producer, committed, entries, markers, offsets
from tests.properties.strategies import by_strategy


@by_strategy
def test_6F_47_data_then_index_entries_then_markers(tmp_path: Path, strategy: str) -> None:
    """6F.47: Data goes first, then the entries of the transaction index, then, after the retention, the
    abort markers.
    """
    log = LogBuilder(tmp_path, delete_retention_ms=HOUR)
    first, second = Producer(log, 1), Producer(log, 2)
    first.put(("a", 1), ("b", 1)).abort()
    second.put(("a", 2), ("c", 2)).abort()
    first.put(("d", 1)).commit()
    second.put(("e", 1)).commit()
    log.roll()
    aborts = [m.offset for m in markers(log) if m.type == "abort"]
    log.clean(strategy=strategy)
    assert offsets(log) == [6, 8] and [m.type for m in markers(log)].count("abort") == 2
    seen = [(len(entries(log)), [m.offset for m in markers(log) if m.offset in aborts])]
    for _ in range(4):
        log.wait(2 * HOUR).put("z", 1).roll().clean(strategy=strategy)
        seen.append((len(entries(log)), [m.offset for m in markers(log) if m.offset in aborts]))
    assert all(earlier >= later for (earlier, _), (later, _) in pairwise(seen))
    assert seen[-1] == (0, []), "the aborted transactions have left no trace"
    assert [m.type for m in markers(log)] == ["commit", "commit"], "whose data is there"
    assert set(committed(log)) == {b"d", b"e", b"z"}
    assert log.log.stable_offset == log.log.log_end, "none is left open"
    log.close()


@by_strategy
def test_6F_59_buffers_full_of_what_goes_stop_nothing(tmp_path: Path, strategy: str) -> None:
    """6F.59: Buffers in which every batch is discarded do not stop the cleaning.

    The log has 2 MB of aborted batches, more than one read returns, and then one record.
    """
    log = LogBuilder(tmp_path, max_message_bytes=100_000)
    producer = Producer(log)
    for n in range(30):
        producer.put((f"k{n}", "v" * 70_000))
    producer.abort()
    log.put("after", "v").roll()
    log.clean(strategy=strategy)
    assert offsets(log) == [31] and committed(log) == {b"after": b"v"}
    log.close()
