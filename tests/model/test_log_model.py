"""Compare the log with a model: a dict, and a list of everything that was appended.

Random sequences of appends, deletes, transactions (committed, aborted or left open), rolls, cleanings,
reopenings and passing time; processes stopped before any file change; power cuts that lose unsynced data.
After each step:

- the newest committed record of a key is lost only if it is a tombstone whose retention has passed;
- no record of an undecided transaction is removed; the last stable offset is that of the first such record;
- every remaining record has the offset, timestamp, key and value with which it was appended, in order;
- records acknowledged at `disk` survive a power cut, records acknowledged at `os` survive a killed process;
- repeated cleaning reaches a fixed point within three cleanings.

`LASTWORD_MODEL_EXAMPLES` sets the number of sequences (default 40).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lastword.clock import ManualClock
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder
from lastword.records.record import RawRecord
from tests.build import HOUR, LogBuilder, state_of
from tests.fakes.forgetful import ForgetfulFiles, forget_all, keep_all, names_only, seeded, zero_filled
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles, Stopped
from tests.support.partitions import data_records
from tests.transactions import end_transaction

EXAMPLES = int(os.environ.get("LASTWORD_MODEL_EXAMPLES", "40"))

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"long" * 9])
VALUES = st.sampled_from([b"", b"x", b"y" * 30])


@dataclass(frozen=True)
class Appended:
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None
    producer_id: int = -1  # of the record's transaction


class LogModel(RuleBasedStateMachine):
    """A log in a directory and its model.

    `appended` has the records with an offset that were not lost, in order. `durable` is the number of
    them that are synced.
    """

    @initialize(
        codec=st.sampled_from([0, 3, 4]),
        segment_bytes=st.sampled_from([600, 1000, 1 << 20]),
        retention_ms=st.sampled_from([0, HOUR]),
        map_bytes=st.sampled_from([1024, 1 << 16]),
    )
    def start(self, codec: int, segment_bytes: int, retention_ms: int, map_bytes: int) -> None:
        self.clock = ManualClock()
        self.codec = codec
        self.map_bytes = map_bytes
        self.config = {
            "segment_bytes": segment_bytes,
            "delete_retention_ms": retention_ms,
            "index_interval_bytes": 100,
            "max_message_bytes": 1 << 20,
        }
        self.appended: list[Appended] = []
        self.durable = 0
        self.first_dirty: int | None = None
        self.aborted: set[int] = set()  # producer ids; each transaction has its own
        self.open: set[int] = set()
        self.next_producer = 1
        self.clocks: dict[int, int] = {}  # offset of a tombstone -> time of the first round after it
        self.last_round_ms = 0
        self.top = tempfile.mkdtemp(prefix="lastword-model-")
        self.lives = 0
        self.root = f"{self.top}/0"
        self._begin()

    def _begin(self) -> None:
        """Open the stored log, as a new process does."""
        Path(self.root).mkdir(parents=True, exist_ok=True)
        self.forgetful = ForgetfulFiles(self.root, HastyFiles())
        self.files = RecordingFiles(self.forgetful)
        self.log = LogBuilder(self.root, files=self.files, clock=self.clock, **self.config)
        self.log.codec_of(self.codec)
        self.log.first_dirty = self.first_dirty
        assert self.log.log

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.abandon()
            shutil.rmtree(self.top, ignore_errors=True)

    # ---- the user's calls

    @rule(
        pairs=st.lists(st.tuples(KEYS, st.one_of(st.none(), VALUES)), min_size=1, max_size=6),
        disk=st.booleans(),
    )
    def append(self, pairs: list[tuple[bytes, bytes | None]], disk: bool) -> None:
        base = self.log.log.log_end
        self.clock.advance(1)
        self.log.batch(pairs)
        now = self.clock.now_ms()
        self.appended += [Appended(base + i, now, key, value) for i, (key, value) in enumerate(pairs)]
        if disk:
            self.sync()

    @rule(
        pairs=st.lists(st.tuples(KEYS, st.one_of(st.none(), VALUES)), min_size=1, max_size=4),
        end=st.sampled_from(["commit", "abort", "abort", None]),
    )
    def transaction(self, pairs: list[tuple[bytes, bytes | None]], end: str | None) -> None:
        producer_id, self.next_producer = self.next_producer, self.next_producer + 1
        base = self.log.log.log_end
        self.clock.advance(1)
        builder = BatchBuilder(
            self.codec, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
        now = self.clock.now_ms()
        for key, value in pairs:
            builder.append(now, key, value)
        self.log.log.append_batch(builder.build())
        self.appended += [Appended(base + i, now, k, v, producer_id) for i, (k, v) in enumerate(pairs)]
        self.open.add(producer_id)
        if end is not None:
            self._end(producer_id, end == "commit")

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans())
    def end_transaction(self, commit: bool) -> None:
        self._end(min(self.open), commit)

    def _end(self, producer_id: int, commit: bool) -> None:
        end_transaction(self.log.log, producer_id, 0, commit)
        self.open.discard(producer_id)
        if not commit:
            self.aborted.add(producer_id)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable = len(self.appended)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(hours=st.integers(0, 2))
    def wait(self, hours: int) -> None:
        self.clock.advance(hours * HOUR)

    @rule(due=st.booleans())
    def clean(self, due: bool) -> None:
        before = self._records()
        self._start_clocks()
        round_ = self.log.clean(due=due, map_bytes=self.map_bytes)
        if round_ is None:
            assert self._records() == before
            return
        self.first_dirty = self.log.first_dirty
        self._settle()
        left = [r for r in self._records() if r.offset < round_.end]
        assert len(left) == round_.records_kept
        assert len({r.key for r in left}) == len(left), "below the limit there is one record for a key"

    @rule()
    def reach_a_fixed_point(self) -> None:
        trees = []
        for _ in range(6):
            self.clean(due=False)
            trees.append({name: data for name, data in self.log.tree().items() if name.endswith(".log")})
        assert trees[-2] == trees[-1]

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.durable = len(self.appended)
        self._begin()

    @rule()
    def kill(self) -> None:
        self.log.abandon()
        self._begin()

    def _records(self) -> list[RawRecord]:
        """Return the data records, also of aborted and undecided transactions."""
        return data_records(PartitionView.load(self.log.store))

    def _start_clocks(self) -> None:
        """Record the start of a round: the retention of tombstones begins with the first round after them."""
        self.last_round_ms = self.clock.now_ms()
        for record in self.appended:
            if record.value is None:
                self.clocks.setdefault(record.offset, self.last_round_ms)

    def _settle(self) -> None:
        """Count the records that the round synced before it used them."""
        self.durable = max(self.durable, sum(r.offset < self.log.log.synced_to for r in self.appended))

    # ---- invariants

    @invariant()
    def the_last_word_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        hidden = self.aborted | self.open
        newest = {record.key: record for record in self.appended if record.producer_id not in hidden}
        by_offset = {record.offset: record for record in self.appended}
        records = self._records()
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), "order"
        for record in records:
            known = by_offset[record.offset]
            assert (record.timestamp, record.key, record.value) == (known.timestamp, known.key, known.value)
        for record in self.appended:
            if record.producer_id in self.open:
                assert record.offset in offsets, "nothing undecided goes"
        for record in newest.values():
            if record.offset not in set(offsets):
                assert record.value is None, f"the last word on {record.key!r} is lost"
                due_ms = self.clocks[record.offset] + self.log.config.delete_retention_ms
                assert due_ms <= self.last_round_ms, f"the delete of {record.key!r} went before its time"
        state = {record.key: record.value for record in newest.values() if record.value is not None}
        committed = [r for r in records if by_offset[r.offset].producer_id not in hidden]
        assert state_of(committed) == state
        starts = [record.offset for record in self.appended if record.producer_id in self.open]
        assert self.log.log.stable_offset == min([*starts, self.log.log.log_end])

    # ---- stopped processes and power cuts

    @precondition(lambda self: self.appended)
    @rule(
        stop=st.integers(0, 45),
        torn=st.booleans(),
        cut=st.booleans(),
        due=st.booleans(),
        seed=st.integers(0, 9),
    )
    def stop_within_a_cleaning(self, stop: int, torn: bool, cut: bool, due: bool, seed: int) -> None:
        """Stop before a file change of a round; with `cut`, the power fails too."""
        self._start_clocks()
        self.files.stop_at, self.files.torn = len(self.files.changes) + stop, torn
        try:
            self.log.clean(due=due, map_bytes=self.map_bytes)
            self.first_dirty = self.log.first_dirty
            self._settle()
        except Stopped:
            pass
        self.files.stop_at = None
        if self.files.stopped or cut:
            self._crash(cut, seed)

    @rule(
        stop=st.integers(0, 3),
        torn=st.booleans(),
        pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4),
    )
    def stop_within_an_append(self, stop: int, torn: bool, pairs: list[tuple[bytes, bytes]]) -> None:
        """Stop before a file change of an append or of the roll after it. The append was not acknowledged."""
        base = self.log.log.log_end
        self.clock.advance(1)
        now = self.clock.now_ms()
        self.files.stop_at, self.files.torn = len(self.files.changes) + stop, torn
        whole = [Appended(base + i, now, key, value) for i, (key, value) in enumerate(pairs)]
        try:
            self.log.batch(pairs)
            self.log.roll()
            self.appended += whole
            self._settle()
        except Stopped:
            self.log.abandon()
            self._begin()
            if self.log.log.log_end > base:
                self.appended += whole
        self.files.stop_at = None

    @rule(seed=st.integers(0, 9))
    def power_cut(self, seed: int) -> None:
        self._crash(True, seed)

    def _crash(self, cut: bool, seed: int) -> None:
        self.log.abandon()
        if not cut:
            self._begin()
            return
        policies = [forget_all, names_only, zero_filled, keep_all]
        policy = policies[seed] if seed < len(policies) else seeded(seed)
        self.lives += 1
        root = f"{self.top}/{self.lives}"
        self.forgetful.image(root, drop=policy)
        self.root = root
        self._begin()
        end = self.log.log.log_end
        kept = [record for record in self.appended if record.offset < end]
        self._reopen_transactions(kept)
        assert len(kept) >= self.durable, "what was acknowledged at disk is there"
        self.appended = kept
        self.clocks = {offset: when for offset, when in self.clocks.items() if offset < end}
        self.durable = len(kept)
        if self.first_dirty is not None and self.first_dirty > end:
            raise AssertionError("the cleaner passed what was durable")

    def _reopen_transactions(self, kept: list[Appended]) -> None:
        """Reset transactions to undecided if the power cut lost their markers."""
        there = {record.producer_id for record in kept} - {-1}
        undecided = {p.producer_id for p in self.log.log.producers if p.transaction_start is not None}
        assert undecided <= there and self.open & there <= undecided
        self.aborted -= undecided
        self.aborted &= there
        self.open = undecided


LogModel.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLogModel = pytest.mark.slow(LogModel.TestCase)
