"""`LogBuilder`: a log written as a sentence.

    log = LogBuilder(tmp_path).topic("users").put("a", 1).put("b", 1).roll()
    log.put("a", 2).delete("b")
    log.clean()
    assert log.state() == {b"a": b"2"}

Each `put` or `delete` is a batch of its own; `batch` makes larger ones. Time stands still unless `wait`
moves it. It holds one partition open at a time, without the log directory around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import Files, OsFiles
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.log import PartitionLog
from lastword.partition.open import open_log
from lastword.partition.recovery import Recovery
from lastword.partition.segment_store import SegmentStore
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder, read_records
from lastword.records.record import RawRecord

HOUR = 3_600_000
SALT = b"a salt for tests"

Text = bytes | str | int


def raw(value: Text | None) -> bytes | None:
    """Keys and values as tests write them: text and numbers as UTF-8, None as null."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


class LogBuilder:
    """One partition below `root`, on `files`; `config` starts with `cleanup.policy=compact`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        files: Files | None = None,
        clock: ManualClock | None = None,
        **config: Any,
    ) -> None:
        self.root = os.fspath(root)
        self.files = files if files is not None else OsFiles()
        self.clock = clock if clock is not None else ManualClock()
        self.config = TopicConfig(**({"cleanup_policy": frozenset({"compact"})} | config))
        self.codec = 0
        self.strategy = "kafka"
        self.first_dirty: int | None = None
        self.recovery: Recovery | None = None
        self._name = ("users", 0)
        self._log: PartitionLog | None = None

    # ---- the sentence

    def topic(self, name: str, partition: int = 0, **config: Any) -> LogBuilder:
        """Which partition this is; before the first record."""
        self._name = (name, partition)
        self.config = self.config.replace(**config)
        return self

    def codec_of(self, codec: int) -> LogBuilder:
        """Codec of the batches that follow: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        self.codec = codec
        return self

    def put(self, key: Text | None, value: Text | None, **more: Any) -> LogBuilder:
        return self.batch([(key, value)], **more)

    def delete(self, key: Text) -> LogBuilder:
        return self.batch([(key, None)])

    def batch(
        self,
        pairs: Iterable[tuple[Text | None, Text | None]],
        *,
        timestamp: int | None = None,
        producer_id: int = -1,
        sequence: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> LogBuilder:
        """Append one batch of (key, value)."""
        known = producer_id >= 0
        builder = BatchBuilder(
            self.codec,
            producer_id=producer_id,
            producer_epoch=0 if known else -1,
            base_sequence=sequence if known else -1,
        )
        for key, value in pairs:
            builder.append(
                self.clock.now_ms() if timestamp is None else timestamp, raw(key), raw(value), headers
            )
        self.log.append_batch(builder.build())
        return self

    def roll(self) -> LogBuilder:
        """Close the active segment; the next record begins another."""
        self.log.roll()
        return self

    segment = roll

    def sync(self) -> LogBuilder:
        self.log.sync()
        return self

    def wait(self, ms: int) -> LogBuilder:
        self.clock.advance(ms)
        return self

    # ---- the log

    @property
    def directory(self) -> str:
        return f"{self.root}/{self._name[0]}-{self._name[1]}"

    @property
    def store(self) -> SegmentStore:
        """Where the segments are."""
        return DirectorySegments(self.files, self.directory)

    @property
    def log(self) -> PartitionLog:
        """The open log; opened, and recovered, when it is first asked for."""
        if self._log is None:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            if not self.files.exists(self.directory):
                self.files.mkdir(self.directory)
                self.files.fsync_dir(self.root)
            self._log, self.recovery = open_log(
                self.files, self.directory, self.config, self.clock, recovery_point=0
            )
        return self._log

    def close(self) -> LogBuilder:
        """A clean stop."""
        if self._log is not None:
            self._log.close()
            self._log = None
        return self

    def abandon(self) -> LogBuilder:
        """A killed process: files closed, nothing else."""
        if self._log is not None:
            self._log.abandon()
            self._log = None
        return self

    def reopen(self) -> LogBuilder:
        self.close()
        assert self.log
        return self

    # ---- cleaning

    def plan(self, **more: Any) -> Any:
        from tests.support.cleaning import plan

        view = PartitionView.load(self.store)
        given = {"files": self.files, "clock": self.clock, "first_dirty": self.first_dirty, "salt": SALT}
        return plan(view, self.config, **(given | more))

    def clean(self, **more: Any) -> Any:
        """One round; the new first dirty offset is kept in `first_dirty`."""
        from tests.support.cleaning import clean

        given: dict[str, Any] = {
            "first_dirty": self.first_dirty,
            "record_first_dirty": self._record_first_dirty,
            "salt": SALT,
            "strategy": self.strategy,
        }
        return clean(self.log, self.config, **(given | more))

    def _record_first_dirty(self, offset: int) -> None:
        self.first_dirty = offset

    # ---- what is there

    def records(self) -> list[RawRecord]:
        """Every record, read without the log being open for it."""
        view = PartitionView.load(self.store)
        return records_of(view)

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def state(self) -> dict[bytes, bytes]:
        """What a reader of the whole log ends up with."""
        return state_of(self.records())

    def sizes(self) -> list[tuple[int, int]]:
        """(base offset, size) of the segments."""
        return [(s.base_offset, s.size) for s in PartitionView.load(self.store).segments]

    def tree(self) -> dict[str, bytes]:
        """Every file of the partition's directory and its bytes."""
        top = Path(self.directory)
        return {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file()}


def records_of(view: PartitionView) -> list[RawRecord]:
    found = []
    for segment in view.segments:
        for header in segment.headers():
            data = segment.read_batch(header)
            found += read_records(data, _at_zero(data, segment.file))
    return found


def _at_zero(data: bytes, file: str) -> Any:
    from lastword.records.batch import read_header

    return read_header(data, 0, len(data), file)


def state_of(records: Iterable[RawRecord]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def every_stop(work: Callable[[int], bool], limit: int = 10_000) -> int:
    """Call work(0), work(1), ... until one returns True (it was not stopped any more); returns how many."""
    for number in range(limit):
        if work(number):
            return number
    raise AssertionError(f"still stopped after {limit} changes")
