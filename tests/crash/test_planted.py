"""Plant bugs on purpose: the harness must name each of them by the right invariant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lastword.cleaner.engine import partition, sinks
from lastword.clock import ManualClock
from lastword.config import settings as settings_module
from lastword.errors import SyncFailedError
from lastword.files import Files
from lastword.logdir import log_dir
from lastword.partition import directory_segments, recovery, swap
from lastword.partition import open as open_module
from lastword.partition.durability import Durability
from lastword.partition.tail import Tail
from lastword.segment import append as append_module
from lastword.segment import indexes, names, recover
from tests.crash.enumerate import judge_run
from tests.crash.history import History
from tests.crash.invariants import NOW
from tests.crash.memory import ROOT, MemoryFiles
from tests.crash.scenarios import SCENARIOS, Process, Run, Scenario, keyed, run
from tests.fakes.forgetful import ForgetfulFiles, ForgetfulHandle
from tests.support.exhaustive import stride

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow


def caught(scenario: str, invariant: str) -> None:
    """Check that the scenario violates this invariant with the bug; without it, test_power.py passes."""
    named(run(SCENARIOS[scenario]), invariant)


def named(scenario_run: Run, invariant: str, doomed: Any = ()) -> None:
    """Look first where most bugs take effect: at some moments after the first output of a cleaning."""
    journal, every = scenario_run.files.journal, stride(3)
    begin = next((number for number, op in enumerate(journal) if "rewrite-" in op.path), 0)
    end = len(journal) + 1
    invariants: set[str] = set()
    for moments in (range(begin, end, 31), range(begin, end, every), range(0, begin, every)):
        tally = judge_run(scenario_run, moments=moments, seeds=range(1), doomed=doomed, looking_for=invariant)
        invariants |= {violation.invariant for _, violations in tally.violations for violation in violations}
        if invariant in invariants:
            return
    raise AssertionError(f"{invariant} should have named it; violated: {sorted(invariants)}")


def changing(change: Callable[[Process], object]) -> Scenario:
    """Return a scenario with one change of a topic's settings."""
    return Scenario("a change", lambda p: change(p.open().create(retention_ms=1)), None)  # type: ignore[arg-type, return-value]


def caught_briefly(change: Callable[[Process], object]) -> None:
    """As `caught`, in a scenario with one change of a topic's settings."""
    named(run(changing(change)), "I13")


def nothing(*_: Any, **__: Any) -> None:
    return None


class Instead:
    """A `Files` with some of its methods replaced."""

    def __init__(self, files: Files, **replaced: Callable[..., Any]) -> None:
        self._files = files
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


REPLACED: dict[str, tuple[list[tuple[Any, str, Any]], str, str]] = {
    "a log that is not synced": ([(append_module.SegmentAppender, "sync_log", nothing)], "append", "I1"),
    # Recovery skips records below the recovery point, so their indexes must be on the drive.
    "a recovery point ahead of the indexes": (
        [(append_module.SegmentAppender, "sync_indexes", nothing)],
        "checkpoints",
        "I7",
    ),
    "leftovers that are never removed": (
        [
            (open_module, "remove_leftovers", lambda files, directory, listing, *others: listing),
            (directory_segments.DirectorySegments, "discard_outputs", nothing),
        ],
        "cleans_small",
        "I10",
    ),
    "a time that is not the maker's": ([(Tail, "_append_time", lambda self: 123)], "append", "I9"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_function_that_is_replaced(monkeypatch: Patch, name: str) -> None:
    functions, scenario, invariant = REPLACED[name]
    for owner, attribute, instead in functions:
        monkeypatch.setattr(owner, attribute, instead)
    caught(scenario, invariant)


# ---------------------------------------------------------------- a missing sync


@pytest.mark.parametrize(
    ("unsynced", "scenario", "invariant"),
    [
        ("rewrite-", SCENARIOS["cleans_small"], "I1"),
        (".tmp", SCENARIOS["trims"], "I5"),
        ("lastword.topic-", changing(lambda p: p.set_config("users", retention_ms=2)), "I13"),
    ],
    ids=["an output", "a checkpoint: the log start is lost, and deleted records return", "settings"],
)
def test_a_file_that_is_renamed_before_it_is_synced(
    monkeypatch: Patch, unsynced: str, scenario: Scenario, invariant: str
) -> None:
    """The name is on the drive, the bytes are not."""
    real = ForgetfulHandle.fsync

    def fsync(self: Any) -> None:
        if unsynced not in self.path:
            real(self)

    monkeypatch.setattr(ForgetfulHandle, "fsync", fsync)
    named(run(scenario), invariant)


def test_a_new_segment_whose_name_is_not_synced(monkeypatch: Patch) -> None:
    real = Durability.syncing

    def without(self: Any, *given: Any, indexes: bool) -> Any:
        self.directory_unsynced = False
        yield from real(self, *given, indexes=indexes)

    monkeypatch.setattr(Durability, "syncing", without)
    caught("append", "I1")


def test_a_segment_that_is_not_synced_before_its_successor(monkeypatch: Patch) -> None:
    real = Durability.syncing

    def skip(self: Any, *given: Any, indexes: bool) -> Any:
        if not indexes:
            yield from real(self, *given, indexes=indexes)

    monkeypatch.setattr(Durability, "syncing", skip)
    caught("append", "I1")


def test_a_round_over_records_that_are_not_synced(monkeypatch: Patch) -> None:
    """A record supersedes an older record, the power fails, and both are lost."""
    real = Durability.syncing
    cleaning = [False]

    def pretend(self: Any, appender: Any, end: int, *, indexes: bool) -> Any:
        if cleaning[0]:
            self.synced_to = max(self.synced_to, end)
        else:
            yield from real(self, appender, end, indexes=indexes)

    prepare = partition.prepare

    def preparing(*args: Any, **more: Any) -> Any:
        cleaning[0] = True
        try:
            return prepare(*args, **more)
        finally:
            cleaning[0] = False

    monkeypatch.setattr(Durability, "syncing", pretend)
    monkeypatch.setattr(partition, "prepare", preparing)
    caught("cleans_acked_before_unacked", "I1")


# ---------------------------------------------------------------- a wrong order


@pytest.mark.parametrize(
    "skipped",
    [{0, 1}, {2}],
    ids=["sources deleted before the swap is durable", "a final name before its sources are gone"],
)
def test_a_swap_without_some_syncs_of_the_directory(monkeypatch: Patch, skipped: set[int]) -> None:
    real = swap.publish

    def publish(files: Files, directory: str, sources: Any, output: Any) -> Any:
        count = iter(range(100))

        def fsync_dir(path: str) -> None:
            if next(count) not in skipped:
                files.fsync_dir(path)

        return real(Instead(files, fsync_dir=fsync_dir), directory, sources, output)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "publish", publish)
    caught("cleans_small", "I1")


def test_a_checkpoint_before_the_swap(monkeypatch: Patch) -> None:
    real = sinks.Publisher.take

    def early(self: Any, rewrite: Any, liveness: Any) -> Any:
        self._record_first_dirty(rewrite.plan.limit)
        return real(self, rewrite, liveness)

    monkeypatch.setattr(sinks.Publisher, "take", early)
    caught("cleans", "I8")


def test_a_marker_of_a_clean_stop_before_what_it_promises(monkeypatch: Patch) -> None:
    """The log does not end where the marker and the checkpoints say: it is not opened."""
    real = log_dir.LogDirectory.close

    def early(self: Any) -> None:
        if not self._closed:
            log_dir.leave_clean_shutdown(self.files, self.path)
        real(self)

    monkeypatch.setattr(log_dir.LogDirectory, "close", early)
    caught("closes", "I1")


# ---------------------------------------------------------------- settings of topics


def _write_with(monkeypatch: Patch, instead: Callable[[Files], Instead]) -> None:
    real = settings_module._write

    def write(files: Files, *given: Any, **more: Any) -> None:
        real(instead(files), *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(settings_module, "_write", write)


def test_settings_whose_name_is_not_synced(monkeypatch: Patch) -> None:
    _write_with(monkeypatch, lambda files: Instead(files, fsync_dir=nothing))
    caught_briefly(lambda p: p.set_config("users", retention_ms=2).put([keyed(1)]))


def test_settings_that_are_changed_in_place(monkeypatch: Patch) -> None:
    def in_place(files: Files) -> Instead:
        def write_atomic(path: str, data: bytes, **_: Any) -> None:
            with files.open_append(path, create=True) as handle:
                handle.truncate(0)
                handle.append(data)
                handle.fsync()

        return Instead(files, write_atomic=write_atomic)

    _write_with(monkeypatch, in_place)
    caught_briefly(lambda p: [p.set_config("users", retention_ms=number) for number in (2, 3, 4)])


def test_a_table_that_is_removed_before_there_is_a_file(monkeypatch: Patch) -> None:
    real = settings_module._write

    def write(files: Files, *given: Any, **more: Any) -> None:
        later: list[tuple[str, bytes]] = []

        def write_atomic(path: str, data: bytes, **_: Any) -> None:
            if "lastword.topic-" in path:
                later.append((path, data))
            else:
                files.write_atomic(path, data)

        real(Instead(files, write_atomic=write_atomic), *given, **more)  # type: ignore[arg-type]
        for path, data in later:
            files.write_atomic(path, data)

    monkeypatch.setattr(settings_module, "_write", write)
    caught_briefly(lambda p: p.as_before("users").set_config("users", retention_ms=2))


def test_settings_that_are_removed_before_their_topic(monkeypatch: Patch) -> None:
    real = log_dir.LogDirectory.delete_topics

    def delete_topics(self: Any, topics: Any) -> Any:
        self.remove_settings(topics)
        return real(self, topics)

    monkeypatch.setattr(log_dir.LogDirectory, "delete_topics", delete_topics)
    caught_briefly(lambda p: p.drop("users"))


def test_settings_that_a_killed_deletion_leaves(monkeypatch: Patch) -> None:
    real = log_dir.LogDirectory.remove_settings

    def remove_settings(self: Any, topics: Any) -> None:
        if not self.half_deleted:
            real(self, topics)

    monkeypatch.setattr(log_dir.LogDirectory, "remove_settings", remove_settings)
    caught_briefly(lambda p: p.drop("users"))


# ---------------------------------------------------------------- a wrong recovery


def test_half_a_swap(monkeypatch: Patch) -> None:
    """Recovery renames the output and keeps a source beside it."""
    real = swap.recover

    def forgetful(files: Files, directory: str) -> Any:
        def keep_logs(path: str, missing_ok: bool = False) -> None:
            if not (path.endswith(names.LOG) and files.exists(path)):
                files.unlink(path, missing_ok=missing_ok)

        return real(Instead(files, unlink=keep_logs), directory)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "recover", forgetful)
    caught("cleans_small", "I1")


def test_a_reader_that_knows_nothing_of_swaps(monkeypatch: Patch) -> None:
    real = swap.decide

    class Blind:
        publish, recover = swap.publish, swap.recover

        @staticmethod
        def decide(files: Files, directory: str, listing: Any) -> Any:
            decision = real(files, directory, listing)
            return replace(decision, logs=tuple(log for log in decision.logs if not log[1]))

    monkeypatch.setattr(directory_segments, "swap", Blind)
    caught("cleans_small", "I12")


def test_segments_behind_a_hole_are_kept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(recovery.DamageRepair, "_remove_segment", nothing)
    monkeypatch.setattr(recovery.DamageRepair, "_is_cut", lambda self, inspections, bases: True)
    monkeypatch.setattr(append_module.SegmentAppender, "sync_log", nothing)
    caught("append", "I2")


def test_an_offset_off_by_one(monkeypatch: Patch) -> None:
    """The next offset after a recovery is the offset of the last record."""
    real = append_module.SegmentAppender.resume.__func__  # type: ignore[attr-defined]

    def wrong(cls: Any, segment: Any, **more: Any) -> Any:
        appender = real(cls, segment, **more)
        end = appender.end
        appender.end = end._replace(next_offset=max(end.next_offset - 1, appender.base_offset))
        return appender

    scenario_run = run(SCENARIOS["append"])
    monkeypatch.setattr(append_module.SegmentAppender, "resume", classmethod(wrong))
    named(scenario_run, "I3")


def test_a_torn_index_that_is_accepted(monkeypatch: Patch) -> None:
    """Recovery accepts any existing index file."""
    real = recover.replace_index

    def lazy(files: Files, path: str, data: bytes, **more: Any) -> bool:
        facts = files.stat(path)
        return False if facts is not None and facts.size else real(files, path, data, **more)

    monkeypatch.setattr(recover, "replace_index", lazy)
    monkeypatch.setattr(open_module, "replace_index", lazy)
    caught("indexes_grow", "I7")


def test_an_index_entry_one_byte_too_far(monkeypatch: Patch) -> None:
    real = indexes.IndexBuilder.batch

    def wrong(self: Any, position: int, last_offset: int, max_timestamp: int) -> Any:
        return real(self, position + 1, last_offset, max_timestamp)

    monkeypatch.setattr(indexes.IndexBuilder, "batch", wrong)
    scenario_run = run(SCENARIOS["checkpoints"])
    monkeypatch.setattr(indexes.IndexBuilder, "batch", real)
    named(scenario_run, "I7")


def test_a_torn_tail_that_is_not_cut(monkeypatch: Patch) -> None:
    """Recovery ends the log before a torn batch but keeps its bytes."""
    real = recover.repair

    def uncut(files: Files, inspection: Any) -> Any:
        return real(Instead(files, truncate=nothing), inspection)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "repair", uncut)
    caught("append", "I8")


def test_handles_that_stay_open(monkeypatch: Patch) -> None:
    kept: list[Any] = []
    real = append_module.SegmentAppender.close

    def close(self: Any) -> Any:
        kept.append(self._times)
        self._times = self._index
        return real(self)

    monkeypatch.setattr(append_module.SegmentAppender, "close", close)
    caught("append", "I11")


# ---------------------------------------------------------------- a wrong cleaning, a wrong record


def test_tombstones_that_go_too_early(monkeypatch: Patch) -> None:
    real = partition.prepare

    def prepare(*args: Any, **more: Any) -> Any:
        return replace(real(*args, **more), now_ms=1 << 60, delete_retention_ms=0)

    monkeypatch.setattr(partition, "prepare", prepare)
    caught("cleans_twice", "I6")


def test_a_dead_bit_for_a_live_record(monkeypatch: Patch) -> None:
    """The certificate, which would detect the fault, is removed as well."""
    import numpy as np

    from lastword.cleaner.engine import certificate
    from lastword.resolve.resolver import Resolver

    real = Resolver.run

    def run_wrong(resolver: Resolver) -> Any:
        resolution = real(resolver)
        dead = resolution.dead
        dead.page_bits[dead.page_slots[0], 0] |= np.uint64(1 << 1)  # offset 1 is the only `c`
        return resolution

    monkeypatch.setattr(Resolver, "run", run_wrong)
    monkeypatch.setattr(certificate.Certified, "__eq__", lambda self, other: True)
    caught("cleans", "I4")


def test_a_record_that_was_never_appended(monkeypatch: Patch) -> None:
    """The process does not report one of its appends."""
    scenario_run = run(SCENARIOS["append"])
    silent = [e for e in scenario_run.history.events if e.kind == "attempt" and e.value]
    scenario_run.history.events.remove(silent[3])
    named(scenario_run, "I5")


# ---------------------------------------------------------------- a sync that fails


class FailingOnce(ForgetfulFiles):
    """The n-th sync of a log file fails and loses the bytes that it should have saved: the kernel reports it
    once, and the next sync of the same file succeeds without these bytes.
    """

    fail_at = 0

    def __init__(self, inner: Files) -> None:
        super().__init__(ROOT, inner)
        self.doomed: set[int] = set()
        self.syncs = 0


def _failing(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def fsync(self: Any) -> None:
        files = self._files
        if isinstance(files, FailingOnce) and self.path.endswith(names.LOG):
            files.syncs += 1
            if files.syncs == files.fail_at:
                files.doomed.update(files.pending(len(files.journal)).data.get(self._inode, []))
                assert isinstance(files.inner, MemoryFiles)
                raise files.inner.fail(self.path)
        real(self)

    return fsync


def _with_a_failing_sync(monkeypatch: Patch, fail_at: int) -> tuple[Run, set[int]]:
    monkeypatch.setattr(ForgetfulHandle, "fsync", _failing(ForgetfulHandle.fsync))

    def work(p: Process) -> None:
        p.open().create()
        for number in range(9):
            with contextlib.suppress(SyncFailedError):
                p.put([keyed(number)], ack="disk")

    scenario = Scenario("a sync fails", work)
    files = FailingOnce(MemoryFiles())
    files.fail_at = fail_at
    history, settings, clock = History(), scenario.make_settings(), ManualClock(NOW)
    history.moment = lambda: len(files.journal)
    process = Process(files, history, settings, clock)
    work(process)
    process.abandon()
    return Run(scenario, files, history, clock, settings), files.doomed


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_a_failed_sync_is_final(monkeypatch: Patch, fail_at: int) -> None:
    scenario_run, doomed = _with_a_failing_sync(monkeypatch, fail_at)
    assert doomed
    judge_run(scenario_run, doomed=doomed).raise_any()


def test_a_sync_that_is_tried_again(monkeypatch: Patch) -> None:
    real = append_module.SegmentAppender.sync_log

    def again(self: Any) -> None:
        try:
            real(self)
        except SyncFailedError:
            self.segment.stored.files.guard(ROOT)
            real(self)

    monkeypatch.setattr(append_module.SegmentAppender, "sync_log", again)
    scenario_run, doomed = _with_a_failing_sync(monkeypatch, 3)
    named(scenario_run, "I1", doomed)
