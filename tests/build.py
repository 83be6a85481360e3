"""`LogBuilder`: a log built by a chain of calls.

    log = LogBuilder(tmp_path).topic("users").put("a", 1).put("b", 1).roll()
    log.put("a", 2).delete("b")
    log.clean()
    assert log.state() == {b"a": b"2"}

Each `put` or `delete` appends one batch; `batch` appends larger batches. Only `wait` moves the clock. The
builder holds one partition open at a time, without a log directory.
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
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder, read_records
from lastword.records.record import RawRecord

HOUR = 3_600_000
SALT = b"a salt for tests"

Text = bytes | str | int


def raw(value: Text | None) -> bytes | None:
    """Return a key or value of a test as bytes: text and numbers as UTF-8, None as null."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


class LogBuilder:
    """A partition below `root`, on `files`; the default of `config` is `cleanup.policy=compact`."""

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

    # ---- the chain of calls

    def topic(self, name: str, partition: int = 0, **config: Any) -> LogBuilder:
        """Set the name and number of the partition; call this before the first record."""
        self._name = (name, partition)
        self.config = self.config.replace(**config)
        return self

    def codec_of(self, codec: int) -> LogBuilder:
        """Set the codec of the following batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
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
        """Close the active segment; the next record begins a new segment."""
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
    def store(self) -> DirectorySegments:
        """Return the segment store of the partition."""
        return DirectorySegments(self.files, self.directory)

    @property
    def log(self) -> PartitionLog:
        """Return the open log; the first use opens and recovers it."""
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
        """Stop cleanly."""
        if self._log is not None:
            self._log.close()
            self._log = None
        return self

    def abandon(self) -> LogBuilder:
        """Stop like a killed process: close the files and do nothing else."""
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
        """Run one round; `first_dirty` is set to the new first dirty offset."""
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

    # ---- content

    def records(self) -> list[RawRecord]:
        """Return every record, read from the files without opening the log."""
        view = PartitionView.load(self.store)
        return records_of(view)

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def state(self) -> dict[bytes, bytes]:
        """Return the newest value of each key, as a reader of the whole log gets it."""
        return state_of(self.records())

    def sizes(self) -> list[tuple[int, int]]:
        """Return (base offset, size) of each segment."""
        return [(s.base_offset, s.size) for s in PartitionView.load(self.store).segments]

    def tree(self) -> dict[str, bytes]:
        """Return the files of the partition's directory with their bytes."""
        top = Path(self.directory)
        return {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file()}


def records_of(view: PartitionView) -> list[RawRecord]:
    records = []
    for segment in view.segments:
        for header in segment.headers():
            data = segment.read_batch(header)
            records += read_records(data, _at_zero(data, segment.file))
    return records


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


def every_stop(work: Callable[[int], bool], step: int = 1, limit: int = 10_000) -> int:
    """Call work(0), work(step), ... until one returns True (it was not stopped); return that number."""
    for number in range(0, limit, step):
        if work(number):
            return number
    raise AssertionError(f"still stopped after {limit} changes")
