"""Compare the states of a topic with one dict, beside every other writer of the topic.

Random sequences, by seed: several states of one topic, which have values in memory or not by the opening;
times to live; `topic.append` and `extend`; transactions that are committed, aborted or left open; rolls,
cleanings, reopenings and stops of the process; a topic that is deleted and created again. Beside them are
readers of both kinds. The model has every record by partition and offset, and the newest committed one of
each key is the dict, until its time is over.
After each step:

- every state and reader shows the dict, and one of them also by `len` and by a lookup of every key;
- a position that was taken before has not moved, and no decided record above it is missing from the log;
- a log that is opened again gives the same dict, whatever transactions are open.

Threads add to counters through several states beside producers that set them: in the log each sum is one more
than the record before. Two processes of a log in a bucket do the same, and pop items: none comes twice.

In every other sequence the limits of an index are small: a few records make runs, merges and bulk builds.

`LASTWORD_MODEL_EXAMPLES` sets the number of sequences (default 12).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword import errors
from lastword.clock import ManualClock
from lastword.keys import bulk, index
from lastword.partition import scan
from lastword.records.batch import BatchBuilder
from tests.support.exhaustive import few
from tests.support.threads import together
from tests.transactions import end_transaction

SEQUENCES = int(os.environ.get("LASTWORD_MODEL_EXAMPLES", "12"))
STEPS = 30
KEYS = ["", "a", "b", "c", "é", "long" * 40]
VALUES = [None, 0, 1, "x", [2] * 10]
KINDS = ["none", "values"]
GONE = object()


@dataclasses.dataclass(frozen=True)
class Written:
    """A record of the model, of `producer` if it is of a transaction."""

    key: str
    value: Any
    producer: int | None
    ttl: int | None
    at_ms: int

    def is_live(self, now_ms: int) -> bool:
        in_time = self.ttl is None or self.ttl < 0 or self.at_ms + self.ttl * 1000 > now_ms
        return self.value is not GONE and in_time


class States:
    """States of one topic of two partitions, and the model of their log."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng, self.clock = root, rng, ManualClock()
        self.records: list[dict[int, Written]] = [{}, {}]
        self.ends = [0, 0]
        self.open: dict[int, int] = {}  # producer id -> partition
        self.undecided: set[int] = set()
        self.aborted: set[int] = set()
        self.producers = itertools.count(1)
        self.taken: list[tuple[dict[int, int], dict[int, int]]] = []  # positions, and their values then
        self.is_calm = rng.random() < 0.3  # no time passes, and the process is not stopped
        self.config = {"lastword_ttl_ms": 0, "delete_retention_ms": 1 << 40 if self.is_calm else 0}
        self.config["segment_bytes"] = rng.choice([700, 3000, 1 << 20])
        self.begin()
        self.beside = lastword.open(root, clock=self.clock)
        self.readers = [self.beside.state("t", memory=kind) for kind in KINDS]

    def begin(self) -> None:
        self.logs = lastword.open(self.root, "a", clock=self.clock, log_cleaner_enable=False)
        self.kind = self.rng.choice(KINDS)
        self.states = [self.logs.state("t", partitions=2, memory=self.kind, **self.config)]
        self.topic = self.logs["t"]

    def live(self) -> dict[str, Written]:
        hidden, now = self.undecided | self.aborted, self.clock.now_ms()
        newest = {
            record.key: record
            for records in self.records
            for _, record in sorted(records.items())
            if record.producer not in hidden
        }
        return {key: record for key, record in newest.items() if record.is_live(now)}

    def dict(self) -> dict[str, Any]:
        return {key: record.value for key, record in self.live().items()}

    def position(self) -> dict[int, int]:
        held = [
            min([self.ends[n], *(o for o, r in self.records[n].items() if r.producer in self.undecided)])
            for n in range(2)
        ]
        return dict(enumerate(held))

    def add(self, key: str, value: Any, producer: int | None = None, ttl: int | None = None) -> None:
        number = self.topic._partition_of(key.encode())
        self.records[number][self.ends[number]] = Written(key, value, producer, ttl, self.clock.now_ms())
        self.ends[number] += 1

    # ---- steps

    def of_state(self) -> None:
        state, rng, live, model = self.rng.choice(self.states), self.rng, self.live(), self.dict()
        key, value = rng.choice(KEYS[: rng.choice([2, 6])]), rng.choice(VALUES)
        old, ttl = model.get(key, "absent"), live[key].ttl if key in live else None
        match rng.randrange(15):
            case 0:
                state[key] = value
                self.add(key, value)
            case 1 | 11 | 12:
                ttl = rng.choice([None, 60, 7200, -1])
                state.set(key, value, ttl=ttl)
                self.add(key, value, ttl=ttl)
            case 2 if key in model:
                del state[key]
                self.add(key, GONE)
            case 2:
                with pytest.raises(KeyError):
                    del state[key]
            case 3:
                assert state.pop(key, "absent") == old
                if key in model:
                    self.add(key, GONE)
            case 4 if isinstance(model.get(key, 0), int):
                assert state.incr(key) == model.get(key, 0) + 1
                self.add(key, model.get(key, 0) + 1, ttl=ttl)
            case 5:
                assert state.setdefault(key, value) == model.get(key, value)
                if key not in model:
                    self.add(key, value)
            case 6:
                changes = {key: value, KEYS[0]: 7, KEYS[5]: 8}
                state.update(changes)
                for changed, new in changes.items():
                    self.add(changed, new)
            case 7 if model and self.kind == "values":
                popped, was = state.popitem()
                assert model[popped] == was
                self.add(popped, GONE)
            case 8 | 13:
                new = rng.choice([old, [old, value]])
                assert state.change(key, lambda _: new, default="absent") == new
                if key not in model or new != old:
                    self.add(key, new, ttl=ttl)
            case 9 | 14 if isinstance(old, list):
                with state.edit(key) as edited:
                    edited.append(1)
                self.add(key, [*old, 1], ttl=ttl)
            case 10 if rng.random() < 0.2:
                state.clear()
                for known in model:
                    self.add(known, GONE)

    def of_topic(self) -> None:
        """Append by the topic, to which None is a tombstone."""
        pairs = [(self.rng.choice(KEYS), self.rng.choice(VALUES)) for _ in range(self.rng.randrange(1, 5))]
        if len(pairs) == 1:
            self.topic.append(*pairs[0])
        else:
            self.topic.extend(pairs)
        for key, value in pairs:
            self.add(key, GONE if value is None else value)

    def of_transaction(self) -> None:
        producer, key = next(self.producers), self.rng.choice(KEYS)
        number = self.topic._partition_of(key.encode())
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        keys = [
            key,
            *(k for k in KEYS if self.rng.random() < 0.3 and self.topic._partition_of(k.encode()) == number),
        ]
        pairs = [(key, self.rng.choice([GONE, 50, 60])) for key in keys]
        for key, value in pairs:
            builder.append(self.clock.now_ms(), key.encode(), None if value is GONE else b"%d" % value)
        self.logs.dirs.log("t", number).append_batch(builder.build())
        self.open[producer] = number
        self.undecided.add(producer)
        for key, value in pairs:
            self.add(key, value, producer)

    def decide(self) -> None:
        if self.open:
            producer = self.rng.choice(list(self.open))
            number, commit = self.open.pop(producer), self.rng.random() < 0.7
            end_transaction(self.logs.dirs.log("t", number), producer, 0, commit)
            self.ends[number] += 1
            self.undecided.discard(producer)
            if not commit:
                self.aborted.add(producer)

    def clean(self) -> None:
        if self.rng.random() < 0.5:
            for number in range(2):
                self.logs.dirs.log("t", number).roll()
        self.wait()
        self.logs.clean("t")
        self.ends = [
            end for _, end in self.topic.bounds().values()
        ]  # it appends tombstones of expired values

    def wait(self) -> None:
        if not self.is_calm:
            self.clock.advance(3_600_000 * self.rng.randrange(4))

    def open_state(self) -> None:
        if len(self.states) > 1 and self.rng.random() < 0.5:
            self.states.pop(self.rng.randrange(len(self.states))).close()
        else:
            self.states.append(self.logs.state("t", memory=self.kind))

    def make_again(self) -> None:
        """Delete the topic and create it again, while its states are open."""
        self.logs.delete_topic("t")
        self.records, self.ends = [{}, {}], [0, 0]
        self.open, self.undecided, self.aborted = {}, set(), set()
        formats = {"key_serializer": "str", "value_serializer": "json"}
        self.topic = self.logs.create_topic("t", 2, cleanup_policy="compact", **formats, **self.config)
        for _ in range(self.rng.choice([0, 5, 30])):
            self.of_topic()

    def restart(self) -> None:
        kept = [dict(state) for state in self.states]
        self.logs.close()
        with pytest.raises(errors.UsageError, match="is closed"):
            len(self.states[0])
        self.begin()
        assert all(one == dict(self.states[0]) for one in kept), "opening the log again gives another dict"

    def stop(self) -> None:
        if self.is_calm:
            return
        for directory in self.logs.dirs.directories:
            directory.abandon()
        self.logs.dirs.closed = True
        self.begin()

    def save(self) -> None:
        self.logs.dirs.key_indexes.save_large()

    def refresh(self) -> None:
        changed = self.rng.choice(self.states).refresh()
        # else everything is read again after a stop or a removed tombstone, and the cleaner's count
        assert changed == 0 or not self.is_calm, "the process had not shown its own records"

    def take_position(self) -> None:
        position = self.rng.choice(self.states).position
        assert position == self.position()
        self.taken.append((position, dict(position)))

    def run(self, steps: int) -> None:
        mix: list[tuple[Callable[[], None], int]] = [
            (self.of_state, 60),
            (self.of_topic, 12),
            (self.of_transaction, 5),
            (self.decide, 6),
            (self.clean, 4),
            (self.wait, 8),
            (self.open_state, 4),
            (self.restart, 1),
            (self.stop, 1),
            (self.save, 1),
            (self.refresh, 2),
            (self.take_position, 4),
            (self.make_again, 2),
        ]
        chosen, weights = zip(*mix, strict=True)
        for step in self.rng.choices(chosen, weights, k=steps):
            step()
            if self.rng.random() < 0.4:  # else the changes of several steps are taken in together
                self.check()
        self.restart()
        self.logs.close()
        self.beside.close()

    def check(self) -> None:
        model, position = self.dict(), self.position()
        self.readers[1].refresh()
        shown = [*self.states, *self.readers]
        assert all(dict(state) == model for state in shown)
        assert all(state.position == position for state in shown)
        state = self.rng.choice(shown)
        assert len(state) == len(model) and bool(state) == bool(model)
        assert {key: state[key] for key in KEYS if key in state} == model
        assert {key: state.get(key, GONE) for key in KEYS} == {key: model.get(key, GONE) for key in KEYS}
        assert all(position == value for position, value in self.taken), "a position has moved"


def run(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> None:
    """Run one sequence."""
    with monkeypatch.context() as patch:
        if seed % 2:
            patch.setattr(index, "OVERLAY_ENTRIES", 4)
            patch.setattr(index, "WORTH_SAVING", 1)
            patch.setattr(index, "MANY", 12)
            patch.setattr(bulk, "WINDOW", 8)
            patch.setattr(scan, "PLAIN_BYTES_LOADED", 400)
        States(root / str(seed), random.Random(seed)).run(steps)


@pytest.mark.parametrize("seed", range(min(SEQUENCES, 8)))
def test_states_beside_all_writers_are_one_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run(tmp_path, seed, monkeypatch)


@pytest.mark.slow
def test_many_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(8, max(SEQUENCES, 8 + few(96))):
        run(tmp_path, seed, monkeypatch, STEPS * 6 if seed % 30 == 29 else STEPS)


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("ack", ["os", "disk"])
def test_no_update_is_lost_between_threads(tmp_path: Path, ack: str) -> None:
    """Each thread opens the state of a topic that does not exist yet; producers set the counter meanwhile."""
    each = max(20, SEQUENCES)
    with lastword.open(tmp_path / "log", "a", lastword_ack=ack, log_cleaner_enable=False) as logs:

        def add(steps: int) -> None:
            with logs.state("t") as state:
                for _ in range(steps):
                    state.incr("n")

        def produce() -> None:
            logs.state("t").close()
            for number in range(1, each // 2):
                if number % 2:
                    logs["t"].append("n", number * 1_000_000)
                else:
                    builder = BatchBuilder()
                    builder.append(0, b"n", str(number * 1_000_000).encode())
                    logs.dirs.log("t", 0).append_batch(builder.build())

        together(*[partial(add, each)] * 4, produce)
        values = [record.value for record in logs["t"].read()]
        assert dict(logs.state("t")) == {"n": values[-1]}
    sums = [(before, value) for before, value in itertools.pairwise([0, *values]) if value % 1_000_000]
    assert len(sums) == 4 * each and all(value == before + 1 for before, value in sums)


@pytest.mark.slow
def test_no_update_is_lost_beside_clients_of_the_server(tmp_path: Path) -> None:
    """A producer of librdkafka sets the counter, and one of a transaction a key, while states add to it."""
    producer_of = pytest.importorskip("confluent_kafka").Producer
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        states = [logs.state("t"), logs.state("t")]
        with lastword.serve(logs, "127.0.0.1:0") as server:
            client = {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0, "log_level": 0}
            producer = producer_of(client)

            def produce() -> None:
                for number in range(1, 11):
                    producer.produce("t", key=b"n", value=str(number * 1_000_000).encode())
                    producer.flush(10)

            thread = threading.Thread(target=produce)
            thread.start()
            calls = 0
            while thread.is_alive() or calls < 20:
                states[calls % 2].incr("n")
                calls += 1
            thread.join()
            transaction = producer_of({**client, "transactional.id": "x"})
            transaction.init_transactions(10)
            transaction.begin_transaction()
            transaction.produce("t", key=b"m", value=b"7")
            transaction.flush(10)
            assert "m" not in states[0] and states[1].position[0] < logs["t"].bounds()[0][1]
            transaction.commit_transaction(10)
            assert states[0]["m"] == 7 and states[1].position == {0: logs["t"].bounds()[0][1]}
        values = [record.value for record in logs["t"].read() if record.key == "n"]
    sums = [(before, value) for before, value in itertools.pairwise([0, *values]) if value % 1_000_000]
    assert len(values) == calls + 10 and len(sums) == calls
    assert all(value == before + 1 for before, value in sums)


# ---------------------------------------------------------------- processes of a log in a bucket


def test_no_update_is_lost_between_processes_of_a_bucket() -> None:
    """Two openings of one log in a bucket share nothing but the store, as two processes do."""
    rng, each = random.Random(5), max(10, SEQUENCES)
    url = f"memory://states-model-{os.getpid()}/log"
    given: dict[str, Any] = {"lastword_commit_linger_ms": 0, "log_cleaner_enable": False}
    with lastword.open(url, "a", **given) as one, lastword.open(url, "a", **given) as two:
        states = [one.state("t"), two.state("t")]
        states[0].update({f"item {n}": n for n in range(each)})
        states[0].sync()
        popped: list[int] = []
        firsts: set[str] = set()

        def added(item: tuple[int, int], value: list[Any]) -> list[Any]:
            return [*value, item]

        def work(number: int) -> None:
            state, other = states[number], (one, two)[number]
            for step in range(each):
                match step % 4:
                    case 0:
                        other["t"].append(f"own {number}", step)
                        assert state[f"own {number}"] == step
                    case 1:
                        state[f"own {number}"] = -step
                        firsts.add(state.setdefault("first", f"of {number}"))
                    case 2:
                        state.change("list", partial(added, (number, step)), default=[])
                        if rng.random() < 0.3:
                            state.refresh()
                assert isinstance(state.incr("n"), int)
                item = state.pop(f"item {step}", None)
                if item is not None:
                    popped.append(item)

        together(*(partial(work, number) for number in range(2)))
        for state in states:
            state.sync()
        for state in states:
            state.refresh()
        shown = dict(states[0])
        assert shown == dict(states[1])
        assert states[0]["n"] == 2 * each and sorted(popped) == list(range(each)) and len(firsts) == 1
        assert sorted(map(tuple, states[0]["list"])) == [(n, s) for n in range(2) for s in range(2, each, 4)]
    with lastword.open(url) as logs:
        assert dict(logs.state("t")) == shown, "opening the log again gives another dict"
