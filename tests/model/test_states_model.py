"""Compare the states of a topic with one dict, beside every other writer of the topic.

Random sequences, by seed: several states of one topic, `topic.append` and `extend`, transactions that are
committed, aborted or left open, cleanings, trims and reopenings. The model has every record by partition and
offset, and the newest committed one of each key is the dict. After each step:

- every state shows the dict, and so does `refresh`;
- a position that was taken before has not moved, and no decided record above it is missing from the log;
- a log that is opened again gives the same dict, whatever transactions are open.

Threads add to counters through several states beside producers that set them: in the log each sum is one more
than the record before. Two processes of a log in a bucket do the same, and pop items: none comes twice.

`LASTWORD_MODEL_EXAMPLES` sets the number of sequences (default 12).
"""

from __future__ import annotations

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
from lastword.records.batch import BatchBuilder
from tests.support.threads import together
from tests.transactions import end_transaction

SEQUENCES = int(os.environ.get("LASTWORD_MODEL_EXAMPLES", "12"))
STEPS = 60
KEYS = [f"k{n}" for n in range(6)]


class States:
    """States of one topic of two partitions, and the model of their log."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng = root, rng
        self.records: list[dict[int, tuple[str, Any, int | None]]] = [{}, {}]
        self.ends, self.starts = [0, 0], [0, 0]
        self.open: dict[int, int] = {}  # producer id -> partition
        self.undecided: set[int] = set()
        self.aborted: set[int] = set()
        self.producers = itertools.count(1)
        self.taken: list[tuple[dict[int, int], dict[int, int]]] = []  # positions, and their values then
        self.begin()

    def begin(self) -> None:
        self.logs = lastword.open(self.root, "a", segment_bytes=700, log_cleaner_enable=False)
        self.states = [self.logs.state("t", partitions=2)]
        self.topic = self.logs["t"]

    def dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for records in self.records:
            for _, (key, value, producer) in sorted(records.items()):
                if producer is None or producer not in self.undecided | self.aborted:
                    values[key] = value
        return {key: value for key, value in values.items() if value is not None}

    def position(self) -> dict[int, int]:
        held = [
            min([self.ends[n], *(o for o, r in self.records[n].items() if r[2] in self.undecided)])
            for n in range(2)
        ]
        return dict(enumerate(held))

    def add(self, key: str, value: Any, producer: int | None = None) -> None:
        number = self.topic._partition_of(key.encode())
        self.records[number][self.ends[number]] = key, value, producer
        self.ends[number] += 1

    # ---- steps

    def of_state(self) -> None:
        state, rng, model = self.rng.choice(self.states), self.rng, self.dict()
        key, number = rng.choice(KEYS), rng.randrange(100)
        match rng.randrange(9):
            case 0:
                state[key] = number
                self.add(key, number)
            case 1 if key in model:
                del state[key]
                self.add(key, None)
            case 2:
                assert state.pop(key, "absent") == model.get(key, "absent")
                if key in model:
                    self.add(key, None)
            case 3:
                assert state.incr(key) == model.get(key, 0) + 1
                self.add(key, model.get(key, 0) + 1)
            case 4:
                assert state.setdefault(key, number) == model.get(key, number)
                if key not in model:
                    self.add(key, number)
            case 5:
                state.update({key: number, "k0": 7, "k5": 8})
                for written, value in {key: number, "k0": 7, "k5": 8}.items():
                    self.add(written, value)
            case 6 if model:
                popped, value = state.popitem()
                assert model[popped] == value
                self.add(popped, None)
            case 7:
                assert state.change(key, lambda value: value * 2, default=number) is not None
                new = model.get(key, number) * 2
                if model.get(key) != new:
                    self.add(key, new)
            case 8 if rng.random() < 0.2:
                state.clear()
                for known in list(model):
                    self.add(known, None)

    def of_topic(self) -> None:
        pairs = [
            (self.rng.choice(KEYS), self.rng.choice([None, 1, 2, 3])) for _ in range(self.rng.randrange(1, 5))
        ]
        if len(pairs) == 1:
            self.topic.append(*pairs[0])
        else:
            self.topic.extend(pairs)
        for pair in pairs:
            self.add(*pair)

    def of_transaction(self) -> None:
        producer, key = next(self.producers), self.rng.choice(KEYS)
        number = self.topic._partition_of(key.encode())
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        values = [self.rng.choice([None, 50, 60]) for _ in range(self.rng.randrange(1, 3))]
        for value in values:
            builder.append(0, key.encode(), None if value is None else str(value).encode())
        self.logs.dirs.log("t", number).append_batch(builder.build())
        self.open[producer] = number
        self.undecided.add(producer)
        for value in values:
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
        self.logs.clean("t")

    def open_state(self) -> None:
        if len(self.states) > 1 and self.rng.random() < 0.5:
            self.states.pop(self.rng.randrange(len(self.states))).close()
        else:
            self.states.append(self.logs.state("t"))

    def restart(self) -> None:
        kept = [dict(state) for state in self.states]
        self.logs.close()
        with pytest.raises(errors.UsageError, match="is closed"):
            len(self.states[0])
        self.begin()
        assert all(one == dict(self.states[0]) for one in kept), "opening the log again gives another dict"

    def refresh(self) -> None:
        assert self.rng.choice(self.states).refresh() == 0, "the process had not shown its own records"

    def take_position(self) -> None:
        position = self.rng.choice(self.states).position
        assert position == self.position()
        self.taken.append((position, dict(position)))

    def run(self, steps: int) -> None:
        mix: list[tuple[Callable[[], None], int]] = [
            (self.of_state, 30),
            (self.of_topic, 12),
            (self.of_transaction, 5),
            (self.decide, 6),
            (self.clean, 2),
            (self.open_state, 4),
            (self.restart, 1),
            (self.refresh, 2),
            (self.take_position, 4),
        ]
        chosen, weights = zip(*mix, strict=True)
        for step in self.rng.choices(chosen, weights, k=steps):
            step()
            if self.rng.random() < 0.6:  # else the changes of several steps are taken in together
                model = self.dict()
                for state in self.states:
                    assert dict(state) == model and len(state) == len(model)
                assert all(position == value for position, value in self.taken), "a position has moved"
        self.restart()
        self.logs.close()


def run(root: Path, seed: int, steps: int = STEPS) -> None:
    """Run one sequence."""
    States(root / str(seed), random.Random(seed)).run(steps)


@pytest.mark.parametrize("seed", range(min(SEQUENCES, 12)))
def test_states_beside_all_writers_are_one_dict(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.mark.slow
def test_many_sequences(tmp_path: Path) -> None:
    for seed in range(12, SEQUENCES):
        run(tmp_path, seed, STEPS * 3)


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
