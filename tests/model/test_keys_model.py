"""Compare `get`, `get_many` and `in` with a read of newest values, beside everything that changes a log.

Random sequences of appends, deletes, transactions, rolls, cleanings of both strategies, trims, truncations,
deletions of the topic, a broker that cuts and appends without our notes; stops of the writer; index files
that are damaged, removed, exchanged between partitions, or replaced by older ones. After each step a writer
(mode "a") and a reader beside it (mode "r") look up every key.

The limits of an index are small, so that a few records make runs, merges and bulk builds.
"""

from __future__ import annotations

import os
import random
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
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.records.batch import BatchBuilder
from tests.transactions import end_transaction

PHASES = [Phase.explicit, Phase.generate]
NAMES = [b"", b"a", b"b", b"c", b"d", b"e", b"long" * 40]
KEYS = st.sampled_from(NAMES)
PAIRS = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.sampled_from([b"", b"x", b"y" * 30]))), min_size=1, max_size=6
)
PARTITIONS = st.sampled_from([0, 1])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 4)
    monkeypatch.setattr(index, "WORTH_SAVING", 1)
    monkeypatch.setattr(index, "MANY", 12)
    monkeypatch.setattr(index, "FEW", 2)
    monkeypatch.setattr(bulk, "WINDOW", 8)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", 400)


def newest(topic, partition=None):
    """Return the newest record of each key by a read, of the partition that `get` prefers."""
    numbers = sorted(topic.schema.numbers) if partition is None else [partition]
    each = {n: {r.key: r for r in topic.newest(partition=n)} for n in numbers}
    found = {key: record for n in numbers for key, record in each[n].items()}
    if partition is None:
        for key in list(found):
            found[key] = each[topic._partition_of(key)].get(key, found[key])
    return found


class Lookups(RuleBasedStateMachine):
    """A directory with one topic of two partitions, a writer, and a reader beside it."""

    @initialize(
        strategy=st.sampled_from(["generational", "kafka"]),
        segment_bytes=st.sampled_from([1000, 3000, 1 << 20]),
        seed=st.integers(0, 1 << 30),
    )
    def start(self, strategy: str, segment_bytes: int, seed: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="keys-"))
        self.clock = ManualClock()
        self.random = random.Random(seed)
        self.config = {
            "cleanup_policy": "compact",
            "segment_bytes": segment_bytes,
            "lastword_strategy": strategy,
            "delete_retention_ms": 0,
            "lastword_ttl_ms": 0,
            "index_interval_bytes": 100,
            "max_message_bytes": 1 << 20,
        }
        self.writer = self._open("a")
        self.writer.create_topic("t", 2, **self.config)
        self.reader = self._open("r")
        self.producers: dict[int, list[int]] = {0: [], 1: []}
        self.next_producer = 1
        self.older: dict[int, Path] = {}

    def _open(self, mode):
        return lastword.open(self.path, mode, clock=self.clock, log_cleaner_enable=False)

    def teardown(self) -> None:
        if hasattr(self, "path"):
            self.writer.close()
            self.reader.close()
            shutil.rmtree(self.path)

    @property
    def topic(self):
        return self.writer.topic("t")

    def _log(self, partition):
        return self.writer.dirs.log("t", partition)

    def _private(self, partition):
        return self.path / f"t-{partition}" / "lastword"

    def _index_files(self, partition):
        return sorted(self._private(partition).glob("keys*"))

    # ---- the log

    @rule(pairs=PAIRS, partition=st.one_of(st.none(), PARTITIONS))
    def append(self, pairs, partition):
        for key, value in pairs:
            self.clock.advance(1)
            self.topic.append(key, value, partition=partition)

    @rule(key=KEYS, ttl_ms=st.sampled_from([1, 100]))
    def append_expiring(self, key, ttl_ms):
        self.topic.append(key, b"short", headers={"lastword.ttl.ms": str(ttl_ms).encode()})

    @rule()
    def expire(self):
        self.clock.advance(3_600_000)
        self.writer.clean("t")

    @rule(seed=st.integers(0, 99))
    def append_many(self, seed):
        chosen = random.Random(seed)
        keys = [chosen.choice([*NAMES, b"%d" % chosen.randrange(40)]) for _ in range(40)]
        self.topic.extend([(key, chosen.choice([b"v", b"w" * 20, None])) for key in keys])

    @rule(pairs=PAIRS, partition=PARTITIONS, end=st.sampled_from(["commit", "abort", None]))
    def transaction(self, pairs, partition, end):
        producer, self.next_producer = self.next_producer, self.next_producer + 1
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        for key, value in pairs:
            builder.append(self.clock.now_ms(), key, value)
        self._log(partition).append_batch(builder.build())
        if end is None:
            self.producers[partition].append(producer)
        else:
            end_transaction(self._log(partition), producer, 0, end == "commit")

    @rule(partition=PARTITIONS, commit=st.booleans())
    def end_transaction(self, partition, commit):
        if self.producers[partition]:
            end_transaction(self._log(partition), self.producers[partition].pop(0), 0, commit)

    @rule(partition=PARTITIONS)
    def roll(self, partition):
        self._log(partition).roll()

    @rule(hours=st.integers(0, 2))
    def clean(self, hours):
        self.clock.advance(3_600_000 * hours)
        self.writer.clean("t")

    @rule(partition=PARTITIONS, share=st.floats(0, 1))
    def trim(self, partition, share):
        log = self._log(partition)
        self.topic.trim(log.log_start + int(share * (log.stable_offset - log.log_start)), partition=partition)

    @rule(partition=PARTITIONS, share=st.floats(0, 1))
    def truncate(self, partition, share):
        self._cut(partition, share)

    def _cut(self, partition, share):
        log = self._log(partition)
        offset = log.log_start + int(share * (log.log_end - log.log_start))
        self.writer.dirs.log_dir("t", partition).truncate("t", partition, offset)
        self.producers[partition] = [
            p for p in self.producers[partition] if p in self._log(partition).undecided
        ]

    @rule()
    def recreate(self):
        self.writer.delete_topic("t")
        self.writer.create_topic("t", 2, **self.config)
        self.producers = {0: [], 1: []}

    @rule(partition=PARTITIONS, share=st.floats(0, 1), pairs=PAIRS, cleans=st.booleans())
    def broker(self, partition, share, pairs, cleans):
        """A broker cuts the log, appends in a new leader epoch, maybe cleans, and leaves our files alone."""
        self.writer.close()
        kept = self.path.parent / f"{self.path.name}-kept"
        shutil.rmtree(kept, ignore_errors=True)
        private = self._private(partition)
        private.mkdir(exist_ok=True)
        shutil.copytree(private, kept)
        self.writer = self._open("a")
        self._cut(partition, share)
        log = self._log(partition)
        log.epochs.assign((log.epochs.latest or 0) + 1, log.log_end)
        self.topic.extend(pairs, partition=partition)
        if cleans:
            log.roll()
            self.writer.clean("t")
        self.writer.close()
        shutil.rmtree(private)
        shutil.copytree(kept, private)
        (private / "synced").unlink(missing_ok=True)
        shutil.rmtree(kept)
        assert LeaderEpochs.load(self.writer.dirs.files, str(private.parent)).entries
        self.writer = self._open("a")

    # ---- processes and settings

    @rule(stops=st.booleans())
    def reopen(self, stops):
        if stops:
            for directory in self.writer.dirs.directories:
                directory.abandon()
            self.writer.dirs.closed = True
        else:
            self.writer.close()
        self.writer = self._open("a")

    @rule()
    def reopen_reader(self):
        self.reader.close()
        self.reader = self._open("r")

    @rule(written=st.booleans())
    def set_index(self, written):
        self.topic.set_config(lastword_key_index=written)

    # ---- index files

    @rule(partition=PARTITIONS, removes=st.booleans(), of_new=st.booleans())
    def damage(self, partition, removes, of_new):
        files = self._index_files(partition)
        if files:
            file = self.random.choice(files)
            if removes:
                file.unlink()
            else:
                data = bytearray(file.read_bytes())
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                file.write_bytes(data)
        if of_new:
            self.reopen_reader()
            self.reopen(stops=True)

    @rule()
    def exchange(self):
        """The index of each partition takes the place of the other's."""
        files = {n: {f.name: f.read_bytes() for f in self._index_files(n)} for n in (0, 1)}
        self.writer.close()
        for n in (0, 1):
            for file in self._index_files(n):
                file.unlink()
            self._private(n).mkdir(exist_ok=True)
            for name, data in files[1 - n].items():
                (self._private(n) / name).write_bytes(data)
        self.writer = self._open("a")
        self.reopen_reader()

    @rule(partition=PARTITIONS, takes=st.booleans())
    def older_copy(self, partition, takes):
        """Keep the files of the index, or put older ones in their place."""
        place = self.path.parent / f"{self.path.name}-older-{partition}"
        if takes:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for file in self._index_files(partition):
                shutil.copy(file, place)
        elif place.exists():
            self.writer.close()
            for file in self._index_files(partition):
                file.unlink()
            self._private(partition).mkdir(exist_ok=True)
            for file in place.iterdir():
                shutil.copy(file, self._private(partition))
            self.writer = self._open("a")
            self.reopen_reader()

    # ---- what must hold

    @invariant()
    def gets_are_the_newest(self):
        if not hasattr(self, "writer"):
            return
        for logs in (self.writer, self.reader):
            topic = logs.topic("t")
            expected = newest(topic)
            keys = [*NAMES, *expected, b"absent"]
            assert topic.get_records(keys) == expected
            assert topic.get_many(keys) == {key: record.value for key, record in expected.items()}
            for key in {*NAMES, *self.random.sample(sorted(expected), min(3, len(expected)))}:
                record = expected.get(key)
                assert topic.get_record(key) == record
                assert topic.get(key, 0) == (0 if record is None else record.value)
                assert (key in topic) == (record is not None)
            one = newest(topic, 1)
            assert topic.get_records(keys, partition=1) == one


TestLookups = Lookups.TestCase
TestLookups.settings = settings(
    max_examples=int(os.environ.get("LASTWORD_MODEL_EXAMPLES", "4")),
    stateful_step_count=30,
    deadline=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
TestLookups = pytest.mark.slow(TestLookups)
