"""Plant faults on purpose: the judge must report each fault by the right rule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest

from lastword.api import cleaning, inspections, keys, open_dirs
from lastword.api.contents import Contents
from lastword.api.reader import Reader
from lastword.api.restore import SnapshotFile
from lastword.api.watch import Watch
from lastword.errors import FileVanishedError
from lastword.files import Files
from lastword.keys import index
from lastword.logdir import LogDirectory
from lastword.partition import directory_segments, moment, swap
from lastword.partition.log import PartitionLog
from lastword.partition.segment_store import SegmentSet
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.tools import verify
from tests.readers import shared
from tests.readers.history import make
from tests.readers.readers import interleavings

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow

EACH = 300
"""Interleavings of each history; the first violation of an expected rule ends the test."""


def caught(kinds: Iterable[str], *rules: str, seeds: Iterable[int] = range(12)) -> None:
    """Check that these readers violate one of the rules; without the fault none does (test_readers.py)."""
    met: set[str] = set()
    for seed in seeds:
        history = make(seed)
        for outcome in interleavings(history, EACH, list(kinds)):
            if outcome.violation is not None:
                met.add(outcome.violation.rule)
                if outcome.violation.rule in rules:
                    return
    raise AssertionError(f"one of {rules} should have named it; violated: {sorted(met)}")


# ---------------------------------------------------------------- which files a view has


def test_an_inode_that_is_not_compared(monkeypatch: Patch) -> None:
    """The name of the listed segment belongs to another file now."""

    def handle(segment: Segment) -> Any:
        if segment._handle is None:
            segment._handle = segment.stored.open_read()
        return segment._handle

    monkeypatch.setattr(Segment, "handle", property(handle))
    caught(("log", "newest", "arrow"), "missing", "no moment", "CorruptBatchError")


def test_a_file_that_vanished_is_passed_over(monkeypatch: Patch) -> None:
    real = Segment.headers

    def headers(segment: Segment, *given: Any) -> Any:
        try:
            return real(segment, *given)
        except FileVanishedError:
            return iter(())

    monkeypatch.setattr(Segment, "headers", headers)
    caught(("log", "follow", "offsets"), "missing")


def test_a_swap_that_is_not_looked_at(monkeypatch: Patch) -> None:
    real = swap.decide

    def decide(files: Any, directory: str, listing: list[str]) -> Any:
        return real(files, directory, [name for name in listing if not name.endswith(names.SWAP)])

    monkeypatch.setattr(swap, "decide", decide)
    caught(("log", "state"), "missing", "no moment")


def test_a_log_start_that_is_not_read(monkeypatch: Patch) -> None:
    monkeypatch.setattr(directory_segments, "read_log_start", lambda files, directory: 0)
    caught(("log", "newest"), "below the log start", "no moment", seeds=(3, 4, 11, 12))


# ---------------------------------------------------------------- which moment a read shows


def test_an_end_that_is_kept_over_a_refresh(monkeypatch: Patch) -> None:
    """The first defect that the harness found: a newest value that moved above the end is missing."""
    real = moment.Range._compute

    def once(range_: moment.Range) -> None:
        if range_.end == 0:
            real(range_)

    monkeypatch.setattr(moment.Range, "_compute", once)
    monkeypatch.setattr(moment, "check_answerable", lambda view, end: None)
    caught(("newest", "state", "restore"), "no moment")


def test_files_that_are_not_held(monkeypatch: Patch) -> None:
    """The newest values are read from some files before a cleaning and from others after it."""
    monkeypatch.setattr(PartitionView, "held", lambda view, start: view)
    caught(("newest", "state", "restore"), "no moment")


def test_a_key_index_that_is_read_over_several_moments(monkeypatch: Patch) -> None:
    """A cleaning removes a record below the end that was decided, because of a newer one above it."""

    def read(range_: Any, read_range: Any) -> Any:
        return read_range(range_.view, range_.start, range_.end)

    monkeypatch.setattr(index, "at_one_moment", read)
    caught(["get"], "no moment", "lost")


def test_a_key_index_that_is_a_record_behind(monkeypatch: Patch) -> None:
    """Of the records that are taken in together the oldest of a key counts."""
    records = index._records
    monkeypatch.setattr(index, "_records", lambda log, range_: reversed([*records(log, range_)]))
    caught(["get"], "no moment", "lost", "stale")


def test_a_key_index_without_deletions(monkeypatch: Patch) -> None:
    """A deleted key is found: its record is there until a cleaning."""
    records = index._records
    monkeypatch.setattr(
        index, "_records", lambda log, range_: (r for r in records(log, range_) if r.value is not None)
    )
    caught(["get"], "no moment")


def test_a_view_that_is_kept_when_its_stamps_have_changed(monkeypatch: Patch) -> None:
    """A lookup beside a writer shows the values of the lookup before."""
    monkeypatch.setattr(Files, "have_stamps", lambda files, stamps: True)
    monkeypatch.setattr(PartitionView, "is_current", lambda view: True)
    caught(["get"], "no moment")


def test_an_expectation_that_is_not_compared(monkeypatch: Patch) -> None:
    """The history of the writer itself shows it."""
    monkeypatch.setattr(keys, "expecting", lambda *given, **more: contextlib.nullcontext())
    with pytest.raises(AssertionError, match="was appended to"):
        make(1)


def test_values_that_outlive_their_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Contents, "_drop_expired", lambda contents: None)
    caught(("state", "refresh", "snapshot"), "no moment", seeds=(1, 6, 11))


def test_a_past_that_is_not_known_any_more(monkeypatch: Patch) -> None:
    monkeypatch.setattr(moment, "check_answerable", lambda view, end: None)
    caught(("as of", "restore as of"), "no moment")


def test_a_snapshot_that_the_log_does_not_continue(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SnapshotFile, "check", lambda *given: None)
    caught(("snapshot",), "no moment")


def test_a_tail_without_its_deletes(monkeypatch: Patch) -> None:
    real = Contents._put_all

    def put_all(contents: Any, values: Any) -> None:
        real(contents, {key: value for key, value in values.items() if value is not None})

    monkeypatch.setattr(Contents, "_put_all", put_all)
    caught(("refresh", "snapshot"), "no moment")


def test_a_position_on_the_record_that_was_given(monkeypatch: Patch) -> None:
    real = Reader._few

    def few(reader: Any, range_: Any) -> Any:
        for record in real(reader, range_):
            reader._position[range_.partition] = record.offset
            yield record

    monkeypatch.setattr(Reader, "_few", few)
    caught(("position",), "goes back")


# ---------------------------------------------------------------- transactions


def test_aborted_records_that_are_shown(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Outcomes, "hidden", lambda outcomes, chunk: None)
    monkeypatch.setattr(
        Outcomes,
        "of_header",
        lambda outcomes, header: BatchOutcome.CONTROL if header.control else BatchOutcome.COMMITTED,
    )
    caught(("log", "arrow"), "aborted", seeds=(2, 3, 10, 11))


def test_records_that_are_not_decided_yet(monkeypatch: Patch) -> None:
    monkeypatch.setattr(PartitionView, "stable_offset", property(lambda view: view.log_end))
    caught(("log", "newest"), "above the end", "aborted", seeds=(2, 3, 10, 11))


def test_a_figure_that_does_not_begin_again(monkeypatch: Patch) -> None:
    """Plans, explanations and counts raised FileVanishedError beside a cleaner."""

    def once(read: Any, renew: Any = None) -> Any:
        return read()

    for module in (cleaning, inspections, open_dirs):
        monkeypatch.setattr(module, "read_again", once)
    caught(("figures",), "FileVanishedError")


# ---------------------------------------------------------------- verify, shared memory


def test_a_problem_that_is_reported_at_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "_CONFIRMED", 1)
    caught(("verify",), "false alarm")


def test_a_log_with_a_hole_while_a_swap_is_published(monkeypatch: Patch) -> None:
    """Readers without the lock read the writer's memory between two steps of a swap."""
    real, real_view = PartitionLog.replace, PartitionLog.view

    def view_without_lock(log: Any) -> Any:
        lock, log.lock = log.lock, contextlib.nullcontext()
        try:
            return real_view(log)
        finally:
            log.lock = lock

    def replace(log: Any, old: Any, new: Any) -> Any:
        gone = {segment.base_offset for segment in old}
        local, (whole, appender) = log._local, log._local._live
        local._live = SegmentSet([s for s in whole if s.base_offset not in gone]), appender
        for _ in range(20):
            log.files.listdir(log.directory)  # a switch point
        local._live = whole, appender
        return real(log, old, new)

    monkeypatch.setattr(PartitionLog, "replace", replace)
    monkeypatch.setattr(PartitionLog, "view", view_without_lock)
    violations = [
        violation for seed in range(12) for *_, violation in shared.run(seed).reads if violation is not None
    ]
    assert {violation.rule for violation in violations} & {"missing", "no moment"}


def test_a_log_that_is_kept_after_its_topic_was_deleted(monkeypatch: Patch) -> None:
    """Readers in the writer's process get the log of the topic that had the name before."""
    kept: dict[tuple[LogDirectory, str, int], PartitionLog] = {}

    def view(directory: LogDirectory, topic: str, partition: int) -> PartitionView:
        log = kept.setdefault((directory, topic, partition), directory.log(topic, partition))
        return log.view()

    monkeypatch.setattr(LogDirectory, "view", view)
    violations = [violation for *_, violation in shared.run(39).reads if violation is not None]
    assert {violation.rule for violation in violations} & {"two topics", "missing"}


# ---------------------------------------------------------------- watches


def caught_in_memory(kind: str, *rules: str, seeds: Iterable[int]) -> None:
    """As `caught`, for readers in the writer's process."""
    met: set[str] = set()
    for seed in seeds:
        met |= {violation.rule for *_, violation in shared.run(seed, [kind]).reads if violation is not None}
        if met & set(rules):
            return
    raise AssertionError(f"one of {rules} should have named it; violated: {sorted(met)}")


def test_changes_that_begin_behind_the_present_values(monkeypatch: Patch) -> None:
    real = Watch._check_cut

    def check_cut(changes: Any, range_: Any) -> None:
        real(changes, range_)
        if not changes.__dict__.setdefault("planted", False) and range_.start + 2 < range_.end:
            changes.planted = True
            changes._position[range_.partition] = range_.start + 2
            range_.start += 2

    monkeypatch.setattr(Watch, "_check_cut", check_cut)
    caught_in_memory("watch", "missing", "no moment", seeds=range(40))


def test_changes_that_begin_before_the_end_of_the_present_values(monkeypatch: Patch) -> None:
    real = Watch._check_cut

    def check_cut(changes: Any, range_: Any) -> None:
        real(changes, range_)
        earlier = max(range_.start - 5, range_.view.log_start)
        if not changes.__dict__.setdefault("planted", False) and earlier < range_.start:
            changes.planted = True
            changes._position[range_.partition] = range_.start = earlier

    monkeypatch.setattr(Watch, "_check_cut", check_cut)
    caught_in_memory("watch", "goes back", seeds=range(40))


def test_a_watch_without_deletions(monkeypatch: Patch) -> None:
    real = Watch._each
    monkeypatch.setattr(
        Watch, "_each", lambda changes: (record for record in real(changes) if not record.is_tombstone)
    )
    caught_in_memory("watch", "missing", "no moment", seeds=range(40))
