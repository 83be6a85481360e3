"""Reads beside a cleaning: the state of one moment, or an error (`partition.moment`).

A reader in mode "r" runs on files that stop it before its n-th call. At that point a writer gives every key a
newer value and cleans. The reader must return the state before that or the state after it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api.open_dirs import OpenDirs
from lastword.clock import ManualClock
from lastword.errors import OffsetOutOfRangeError
from lastword.files import OsFiles
from lastword.partition import scan
from lastword.partition.directory_segments import DirectorySegments
from tests.fakes.recording import RecordingFiles
from tests.support.exhaustive import stride
from tests.transactions import begin_transaction, end_transaction

KEYS = [f"k{n:02d}" for n in range(8)]
ONCE = [f"{name} of {round_}" for round_ in range(4) for name in ("one", "two", "three")]
ALL_KEYS = [*KEYS, *ONCE, "last"]
SETTINGS = {"segment_bytes": "2KiB", "index_interval_bytes": 256, "log_cleaner_enable": False}
State = dict[str, Any]


def opened(path: Path, mode: str = "a", **more: Any) -> Any:
    return lastword.open(path, mode, clock=ManualClock(1_795_168_800_000), **SETTINGS, **more)


def overwrite(path: Path, round_: int, strategy: str = "generational") -> State:
    """Give every key a newer value, delete one key, clean all closed segments; return the state."""
    with opened(path) as logs:
        topic = logs.topic("users")
        for key in KEYS:
            topic.append(key, [round_, key, "x" * 60])
        topic.delete(KEYS[round_ % len(KEYS)])
        logs.dirs.log("users", 0).roll()
        topic.append("last", round_)
        logs.clean("users", strategy=strategy)
        return {record.key: record.value for record in topic.read(view="newest")}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a log with four rounds in closed segments that were never cleaned."""
    path = tmp_path_factory.mktemp("one-moment") / "data"
    with opened(path) as logs:
        topic = logs.create_topic(
            "users", key_serializer="str", value_serializer="json", cleanup_policy="compact"
        )
        for round_ in range(4):
            for key in ONCE[3 * round_ : 3 * round_ + 3]:  # these keys are written once, in every segment
                topic.append(key, round_)
            for key in KEYS:
                topic.append(key, [round_, key, "x" * 60])
            topic.delete(KEYS[round_])
            logs.dirs.log("users", 0).roll()
        topic.append("last", -1)
    return path


def newest(logs: Any, path: Path) -> State:
    return {record.key: record.value for record in logs.topic("users").read(view="newest")}


def changes(logs: Any, path: Path) -> State:
    newest_values = {record.key: record.value for record in logs.topic("users").read(view="changes")}
    return {key: value for key, value in newest_values.items() if value is not None}


def keys(logs: Any, path: Path) -> State:
    return {record.key: record.value for record in logs.topic("users").read(view="newest", keys=ALL_KEYS)}


def arrow(logs: Any, path: Path) -> State:
    import json

    rows = logs.topic("users").read(view="newest").arrow().read_all().to_pylist()
    return {row["key"]: json.loads(row["value"]) for row in rows}


def state(logs: Any, path: Path) -> State:
    return dict(logs.state("users"))


def refreshed(logs: Any, path: Path) -> State:
    state = logs.state("users")
    state.refresh()
    return dict(state)


def restored(logs: Any, path: Path) -> State:
    import json

    to = path / "out.jsonl"
    logs.restore("users", to=to)
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    to.unlink()
    return {row["key"]: row["value"] for row in rows if row["type"] == "record"}


READS: list[Callable[[Any, Path], State]] = [newest, changes, keys, arrow, state, refreshed, restored]


def decode(monkeypatch: pytest.MonkeyPatch, bulk: bool) -> None:
    """Choose kernels or plain Python for reads."""
    for name in ("PLAIN_BYTES", "PLAIN_BYTES_LOADED"):
        monkeypatch.setattr(scan, name, 1 if bulk else 1 << 20)


class Interrupted:
    """Files that call `action` before their n-th call (from 0), once; `calls` counts."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        self.calls = 0
        self._number = number
        self._action = action
        self.files = RecordingFiles(OsFiles(), fail=self._before)

    def _before(self, call: Any) -> None:
        self.calls += 1
        if self.calls == self._number + 1:
            self._action()


def interleavings(
    template: Path,
    root: Path,
    action: Callable[[Path], None],
    read: Callable[[Any, Path], Any],
    first: int = 0,
) -> Iterator[tuple[int, Any]]:
    """Yield what `read` returns or raises, interrupted before each of its file operations in turn.

    The test command interrupts it before every eighteenth operation from `first` on, and the last one. The
    number of operations varies: a directory that was changed a moment ago is listed again.
    """
    number, is_last = first, False
    while True:
        path = root / f"data-{number}"
        shutil.copytree(template, path)
        interrupted = Interrupted(number, lambda path=path: action(path))  # type: ignore[misc]
        with opened(path, "r", files=interrupted.files) as logs:
            try:
                result = read(logs, path)
            except lastword.errors.LastwordError as error:
                result = error
        shutil.rmtree(path)
        if interrupted.calls > number:
            yield number, result
        if is_last:
            return
        is_last = interrupted.calls <= number
        number = interrupted.calls - 1 if is_last else number + stride(18)


@pytest.mark.parametrize(
    ("read", "strategy", "bulk"),
    [
        *((read, "generational", bool(number % 2)) for number, read in enumerate(READS)),
        *(
            pytest.param(read, strategy, not number % 2, marks=pytest.mark.slow)
            for strategy in ("kafka", "generational")[:: stride(2)]
            for number, read in enumerate(READS)
        ),
    ],
)
def test_newest_values_are_of_one_moment(
    read: Callable[[Any, Path], State],
    strategy: str,
    bulk: bool,
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode(monkeypatch, bulk)
    with opened(template, "r") as logs:
        before = state(logs, template)
    after: list[State] = []

    def action(path: Path) -> None:
        after.append(overwrite(path, 5, strategy))

    met = {False, True}
    for first in (0, 9, 4, 13):  # the last operations may all be between two interruptions
        for number, values in interleavings(template, tmp_path, action, read, first):
            assert values in (before, after[-1]), f"interrupted before call {number}"
            met.discard(values == before)
        if not met:
            break
    assert not met, "both moments must be met, or the interruptions are at the wrong places"


@pytest.mark.parametrize(
    ("read", "bulk"), [(r, b) for b in (True, False) for r in ("newest", "changes", "state")][:: stride(2)]
)
def test_an_earlier_end_is_answered_exactly_or_refused(
    read: str, bulk: bool, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule for all reads: the log is whole below the end, or the end is not below a cleaning's."""
    decode(monkeypatch, bulk)

    def as_of(logs: Any, path: Path) -> State:
        if read == "state":
            return dict(logs.state("users", end=20))
        newest_values = {r.key: r.value for r in logs.topic("users").read(view=read, end=20)}
        return {key: value for key, value in newest_values.items() if value is not None}

    with opened(template, "r") as logs:
        right = as_of(logs, template)
        assert right
    refused = 0
    for number, outcome in interleavings(template, tmp_path, lambda path: overwrite(path, 5) and None, as_of):
        if isinstance(outcome, OffsetOutOfRangeError):
            refused += 1
            assert "or later" in str(outcome)
        else:
            assert outcome == right, f"interrupted before call {number}"
    assert refused


@pytest.mark.parametrize(
    ("form", "bulk"), [(f, b) for b in (False, True) for f in ("records", "keys", "arrow")][:: stride(2)]
)
def test_a_log_read_never_goes_back(
    form: str, bulk: bool, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 3: a rewrite merges batches across the offset that the reader reached."""
    decode(monkeypatch, bulk)

    def offsets(logs: Any, path: Path) -> list[int]:
        reader = logs.topic("users").read(keys=ALL_KEYS if form == "keys" else None)
        if form == "arrow":
            return [offset for batch in reader.arrow(256) for offset in batch["offset"].to_pylist()]
        return [record.offset for record in reader]

    def clean(path: Path) -> None:
        with opened(path) as logs:
            logs.clean("users")

    with opened(template, "r") as logs:
        whole = offsets(logs, template)
        newest = {record.offset for record in logs.topic("users").read(view="changes")}
    seen = set()
    for number, read_offsets in interleavings(template, tmp_path, clean, offsets):
        assert read_offsets == sorted(set(read_offsets)), f"interrupted before call {number}"
        assert newest <= set(read_offsets) <= set(whole)
        seen.add(len(read_offsets))
    assert len(seen) > 1


@pytest.mark.parametrize("start", [30, 20, 0])
def test_a_state_read_during_a_truncation_is_read_again_by_refresh(
    start: int, template: Path, tmp_path: Path
) -> None:
    """One reader opens before each operation of the truncation and one after it; then the log grows again.

    The first may have records that are removed next, although the cut is already noted.
    """
    number = 0
    while True:
        path = tmp_path / f"data-{number}"
        shutil.copytree(template, path)
        readers: list[tuple[Any, Any]] = []

        def look(path: Path = path, readers: list[tuple[Any, Any]] = readers) -> None:
            logs = opened(path, "r")
            try:
                readers.append((logs, logs.state("users")))
            except lastword.errors.LastwordError:  # a read beside a truncation may be refused
                logs.close()

        armed = Interrupted(number, look)
        with opened(path, files=armed.files) as logs:
            armed.calls = 0
            log = logs.dirs.log("users", 0)
            if start:
                log.truncate_to(start)
            else:
                log.truncate_fully_and_start_at(start)
            done = armed.calls <= number
            look()
            topic = logs.topic("users")
            for grown in range(60):
                topic.append(KEYS[grown % 3], ["grown", grown])
            newest = {record.key: record.value for record in topic.read(view="newest")}
        for reader, values in readers:
            values.refresh()
            assert dict(values) == newest, f"opened before call {number} of the truncation"
            reader.close()
        shutil.rmtree(path)
        if done:
            assert number > 10
            return
        number += stride(16)


def test_a_tail_behind_an_open_transaction_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the harness: its first segment is replaced before it is opened; the log has a later end."""
    writer = opened(tmp_path)
    topic = writer.create_topic(
        "users", key_serializer="str", value_serializer="json", cleanup_policy="compact"
    )
    log = writer.dirs.log("users", 0)
    topic.extend([("k", 1), ("k", 2)])
    log.roll()
    begin_transaction(log, 7, (b"a", b"0"))  # of which the reader opens the segment early
    log.roll()
    topic.append("k", 3)
    pin = DirectorySegments.pin
    moved: list[bool] = []

    def move_then_pin(self: DirectorySegments, segments: Any) -> None:
        if not moved:
            moved.append(True)
            end_transaction(log, 7, 0, commit=True)
            log.roll()
            topic.append("k", 4)
            writer.clean("users")
        pin(self, segments)

    with opened(tmp_path, "r") as reader:
        monkeypatch.setattr(DirectorySegments, "pin", move_then_pin)
        assert dict(reader.state("users")) == {"a": 0, "k": 4} and moved
    writer.close()


def test_a_cleaning_that_passes_the_stable_offset_of_a_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the harness: the checkpoint of a later cleaning beside the ends of the view."""
    clock = ManualClock(1_795_168_800_000)
    writer = lastword.open(tmp_path, "a", clock=clock, **SETTINGS)
    topic = writer.create_topic("users", cleanup_policy="compact", min_compaction_lag_ms=1000)
    log = writer.dirs.log("users", 0)
    topic.extend([(b"k", b"1"), (b"k", b"2")])
    log.roll()
    begin_transaction(log, 7, (b"a", b"0"))
    log.roll()
    clock.advance(1000)
    topic.append(b"k", b"3")  # too young for the cleaning
    first_dirty = OpenDirs.first_dirty
    cleaned: list[Any] = []

    def clean_before(self: OpenDirs, *tp: Any) -> int | None:
        if not cleaned and self is not writer.dirs:
            end_transaction(log, 7, 0, commit=True)
            cleaned.extend(writer.clean("users"))
        return first_dirty(self, *tp)

    with opened(tmp_path, "r") as reader:
        monkeypatch.setattr(OpenDirs, "first_dirty", clean_before)
        (info,) = reader.topic("users").describe()
    assert cleaned and first_dirty(writer.dirs, "users", 0) == 3
    assert (info.first_dirty, info.stable, info.log_end) == (2, 2, 4)
    writer.close()
