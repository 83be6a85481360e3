"""Compare states with and without values in memory with one dict, beside everything that changes a log.

Random sequences of changes by a state, by `topic.append` and by transactions of other producers that are
committed, aborted or left open; times to live; rolls and cleanings; stops of the writer. The kind of the
writer's state is chosen anew at each opening. Beside it are readers in mode "r" of both kinds. After each
step all of them show the dict: by iteration, by `len`, and by a lookup of every key.

The limits of an index are small, so that a few records make runs, merges and bulk builds.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lastword
from lastword.clock import ManualClock
from lastword.keys import bulk, index
from lastword.partition import scan
from lastword.records.batch import BatchBuilder
from tests.support.exhaustive import few
from tests.transactions import end_transaction

NAMES = ["", "a", "b", "c", "é", "long" * 40]
KEYS = st.sampled_from(NAMES)
VALUES = st.sampled_from([None, 0, 1, "x", [2] * 10])
MEMORY = st.sampled_from(["none", "values"])
TTLS = st.sampled_from([None, 60, 7200, -1])
PARTITIONS = st.sampled_from([0, 1])
PHASES = [Phase.explicit, Phase.generate]
GONE = object()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 4)
    monkeypatch.setattr(index, "WORTH_SAVING", 1)
    monkeypatch.setattr(index, "MANY", 12)
    monkeypatch.setattr(bulk, "WINDOW", 8)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", 400)


class StatesOfBothKinds(RuleBasedStateMachine):
    """A topic of two partitions, a state that writes it, and two that read it."""

    @initialize(memory=MEMORY, segment_bytes=st.sampled_from([700, 3000, 1 << 20]))
    def start(self, memory, segment_bytes):
        self.path = Path(tempfile.mkdtemp(prefix="memory-"))
        self.clock = ManualClock()
        self.log = []  # key, value, producer of an undecided or aborted transaction, time to live, time
        self.aborted: set[int] = set()
        self.producers: dict[int, list[int]] = {0: [], 1: []}
        self.next_producer = 1
        self.config = {"segment_bytes": segment_bytes, "lastword_ttl_ms": 0, "delete_retention_ms": 0}
        self.open(memory)
        self.beside = lastword.open(self.path, clock=self.clock)
        self.readers = [self.beside.state("t", memory=kind) for kind in ("none", "values")]

    def open(self, memory):
        self.logs = lastword.open(self.path, "a", clock=self.clock, log_cleaner_enable=False)
        self.state = self.logs.state("t", partitions=2, memory=memory, **self.config)
        self.memory = memory

    def teardown(self):
        if hasattr(self, "path"):
            self.beside.close()
            self.logs.close()
            shutil.rmtree(self.path)

    @property
    def live(self):
        """The live values, each with its own time to live."""
        hidden = self.aborted.union(*self.producers.values())
        live = {}
        for key, value, producer, ttl, at in self.log:
            if producer not in hidden:
                live[key] = value, ttl, at
        now = self.clock.now_ms()
        return {
            key: (value, ttl)
            for key, (value, ttl, at) in live.items()
            if value is not GONE and (ttl is None or ttl < 0 or at + ttl * 1000 > now)
        }

    @property
    def model(self):
        return {key: value for key, (value, _) in self.live.items()}

    def add(self, key, value, producer=None, ttl=None):
        self.log.append((key, value, producer, ttl, self.clock.now_ms()))

    # ---- changes

    @rule(key=KEYS, value=VALUES, ttl=TTLS)
    def put(self, key, value, ttl):
        self.state.set(key, value, ttl=ttl)
        self.add(key, value, ttl=ttl)

    @rule(key=KEYS)
    def pop(self, key):
        model = self.model
        assert self.state.pop(key, "absent") == model.get(key, "absent")
        if key in model:
            self.add(key, GONE)

    @rule(key=KEYS)
    def delete(self, key):
        if key in self.model:
            del self.state[key]
            self.add(key, GONE)
        else:
            with pytest.raises(KeyError):
                del self.state[key]

    @rule(key=KEYS, value=VALUES)
    def change(self, key, value):
        old, ttl = self.live.get(key, ("absent", None))
        changed = self.state.change(key, lambda known: [known, value], default="absent")
        assert changed == [old, value]
        self.add(key, changed, ttl=ttl)

    @rule(key=KEYS)
    def edit(self, key):
        old, ttl = self.live.get(key, (None, None))
        if isinstance(old, list):
            with self.state.edit(key) as value:
                value.append(1)
            self.add(key, [*old, 1], ttl=ttl)

    @rule(key=KEYS, value=VALUES)
    def setdefault(self, key, value):
        model = self.model
        assert self.state.setdefault(key, value) == model.get(key, value)
        if key not in model:
            self.add(key, value)

    @rule(changes=st.dictionaries(KEYS, VALUES))
    def update(self, changes):
        self.state.update(changes)
        for key, value in changes.items():
            self.add(key, value)

    @rule()
    def clear(self):
        for key in self.model:
            self.add(key, GONE)
        self.state.clear()

    # ---- other writers

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6))
    def append(self, pairs):
        """`topic.append`, to which None is a tombstone."""
        for key, value in pairs:
            self.logs["t"].append(key, value)
            self.add(key, GONE if value is None else value)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4), end=st.sampled_from(["commit", "abort", None, None]))
    def transaction(self, keys, end):
        partition = self.logs["t"]._partition_of(keys[0].encode())
        producer, self.next_producer = self.next_producer, self.next_producer + 1
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        for key in keys:
            if self.logs["t"]._partition_of(key.encode()) == partition:
                builder.append(self.clock.now_ms(), key.encode(), b"%d" % producer)
                self.add(key, producer, producer)
        self.log_of(partition).append_batch(builder.build())
        self.producers[partition].append(producer)
        if end is not None:
            self.decide(partition, producer, commit=end == "commit")

    @rule(partition=PARTITIONS, commit=st.booleans(), number=st.sampled_from([0, -1]))
    def end_transaction(self, partition, commit, number):
        if self.producers[partition]:
            self.decide(partition, self.producers[partition][number], commit=commit)

    def decide(self, partition, producer, *, commit):
        end_transaction(self.log_of(partition), producer, 0, commit)
        self.producers[partition].remove(producer)
        if not commit:
            self.aborted.add(producer)

    def log_of(self, partition):
        return self.logs.dirs.log("t", partition)

    # ---- the log and its processes

    @rule(partition=PARTITIONS)
    def roll(self, partition):
        self.log_of(partition).roll()

    @rule(hours=st.integers(0, 3))
    def clean(self, hours):
        self.clock.advance(3_600_000 * hours)
        self.logs.clean("t")

    @rule()
    def save(self):
        self.logs.dirs.key_indexes.save_large()

    @rule(memory=MEMORY, stops=st.booleans())
    def reopen(self, memory, stops):
        if stops:
            for directory in self.logs.dirs.directories:
                directory.abandon()
            self.logs.dirs.closed = True
        else:
            self.logs.close()
        self.open(memory)

    @invariant()
    def shows_the_dict(self):
        model = self.model
        self.readers[1].refresh()
        for state in (self.state, *self.readers):
            assert dict(state) == model and len(state) == len(model) and bool(state) == bool(model)
            assert {key: state[key] for key in NAMES if key in state} == model
            assert {key: state.get(key, GONE) for key in NAMES} == {
                key: model.get(key, GONE) for key in NAMES
            }
        assert self.readers[0].position == self.readers[1].position == self.state.position


TestStatesOfBothKinds = pytest.mark.slow(StatesOfBothKinds.TestCase)
TestStatesOfBothKinds.settings = settings(
    max_examples=few(60),
    stateful_step_count=25,
    deadline=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
