"""Compare transactions with dicts: blocks of random calls, beside writers that come in between.

Random sequences, by seed: blocks that change two states and a topic by each call of a mapping, that raise, or
that end; writers that change the states inside of the blocks and between them; cleanings and reopenings. The
model is a dict for each state, the changes of the block, and the value of each key that the block has read by
its key. After each block the states are the dicts, also in a log that is opened again, and a block ends with
a ConflictError exactly if a value that it has read is another one.

`LASTWORD_MODEL_EXAMPLES` sets the number of sequences (default 12).
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import ConflictError, UsageError
from tests.support.exhaustive import few

SEQUENCES = int(os.environ.get("LASTWORD_MODEL_EXAMPLES", "12"))
BLOCKS = 12
NAMES = ("s", "t")
KEYS = ["", "a", "b", "c", "é"]
VALUES = [None, 0, 1, "x", [2]]
ABSENT: Any = object()


class Stop(Exception):
    """A block ends with an error of its own."""


class Block:
    """The model of one block: its changes, and what it has read by the keys, of each state."""

    def __init__(self, stored: dict[str, dict[str, Any]]) -> None:
        self.stored = stored
        self.own: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        self.read: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        self.appended: list[Any] = []

    def find(self, name: str, key: str) -> Any:
        """Return a value as a lookup by its key finds it; `ABSENT`: there is none."""
        if key in self.own[name]:
            return self.own[name][key]
        return self.read[name].setdefault(key, self.stored[name].get(key, ABSENT))

    def shown(self, name: str) -> dict[str, Any]:
        """Return the content as an iteration shows it."""
        merged = self.stored[name] | self.own[name]
        return {key: value for key, value in merged.items() if value is not ABSENT}

    @property
    def conflicts(self) -> bool:
        """Whether a value that was read is another one now."""
        return any(
            self.stored[name].get(key, ABSENT) != value
            for name, values in self.read.items()
            for key, value in values.items()
        )

    @property
    def changes(self) -> bool:
        """Whether the block has a record to write."""
        return bool(self.appended or any(self.own.values()))


class Histories:
    """Two states, a topic, and their models."""

    def __init__(self, place: str, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.stored: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        self.appended: list[Any] = []
        self.position: int | None = None
        self.partitions = {name: rng.choice([1, 2]) for name in NAMES}
        self.begin()
        self.logs.create_topic("log", 2, cleanup_policy="delete", value_serializer="json")

    def begin(self) -> None:
        self.logs = lastword.open(
            self.place, "a", log_cleaner_enable=False, lastword_commit_linger_ms=0, segment_bytes=2000
        )
        self.memory = self.rng.choice(["values", "none"]) if "://" not in self.place else "values"
        self.states = {
            name: self.logs.state(name, partitions=self.partitions[name], memory=self.memory)
            for name in NAMES
        }

    def of_block(self, block: Block, name: str, inside: Any) -> None:
        rng, key, value = self.rng, self.rng.choice(KEYS), self.rng.choice(VALUES)
        own = block.own[name]
        match rng.randrange(14):
            case 0 | 1:
                inside[key] = value
                own[key] = value
            case 2:
                assert inside.get(key, ABSENT) == block.find(name, key)
            case 3:
                assert (key in inside) == (block.find(name, key) is not ABSENT)
            case 4:
                was = block.find(name, key)
                if was is ABSENT:
                    with pytest.raises(KeyError):
                        del inside[key]
                else:
                    del inside[key]
                    own[key] = ABSENT
            case 5:
                was = block.find(name, key)
                assert inside.pop(key, "absent") == ("absent" if was is ABSENT else was)
                if was is not ABSENT:
                    own[key] = ABSENT
            case 6:
                was = block.find(name, key)
                assert inside.setdefault(key, value) == (value if was is ABSENT else was)
                if was is ABSENT:
                    own[key] = value
            case 7:
                inside.update({key: value, "more": 1})
                own.update({key: value, "more": 1})
            case 8 if rng.random() < 0.3:
                shown = block.shown(name)
                inside.clear()
                own.update(dict.fromkeys(shown, ABSENT))
            case 9:
                shown = block.shown(name)
                assert dict(inside.items()) == shown and len(inside) == len(shown)
                assert sorted(inside) == sorted(shown)
                block.find(name, key)  # `in` of items looks the key up
                assert ((key, value) in inside.items()) == (block.find(name, key) == value)
            case 10 if block.shown(name):
                popped, was = inside.popitem()
                assert block.find(name, popped) == was
                own[popped] = ABSENT
            case 11:
                block.appended.append(value)
            case 12:
                with pytest.raises(UsageError):
                    inside[5] = 1
                assert inside.get(5, "other") == "other" and 5 not in inside
            case 13:
                self.of_writer()

    def of_writer(self) -> None:
        """Change a state outside of the block."""
        name, key, value = self.rng.choice(NAMES), self.rng.choice(KEYS), self.rng.choice(VALUES)
        match self.rng.randrange(4):
            case 0:
                self.states[name][key] = value
                self.stored[name][key] = value
            case 1:
                self.states[name].pop(key, None)
                self.stored[name].pop(key, None)
            case 2 if value is not None:
                self.logs[name].append(key, value)
                self.stored[name][key] = value
            case 3 if "://" not in self.place:
                self.logs.clean(name)

    def block(self) -> None:
        block = Block(self.stored)
        stops = self.rng.random() < 0.15
        number = self.rng.randrange(1000)
        try:
            with self.logs.transaction() as tx:
                inside = {name: tx.state(name) for name in NAMES}
                for _ in range(self.rng.randrange(8)):
                    name = self.rng.choice(NAMES)
                    before = len(block.appended)
                    self.of_block(block, name, inside[name])
                    if len(block.appended) > before:
                        tx.append("log", None, block.appended[-1])
                if self.rng.random() < 0.2:
                    tx.position("model", number)
                    block.appended.append(Stop)  # a change
                if stops:
                    raise Stop
        except Stop:
            assert stops
            return
        except ConflictError:
            assert block.conflicts and block.changes
            return
        assert not (block.conflicts and block.changes)
        if Stop in block.appended:
            self.position = number
        self.appended += [value for value in block.appended if value is not Stop and value is not None]
        for name, own in block.own.items():
            self.stored[name].update(own)
            self.stored[name] = {
                key: value for key, value in self.stored[name].items() if value is not ABSENT
            }

    def check(self) -> None:
        for name in NAMES:
            assert dict(self.states[name].items()) == self.stored[name]
        assert self.logs.position("model") == self.position
        found = [record.value for record in self.logs["log"].read() if record.value is not None]
        assert sorted(map(str, found)) == sorted(map(str, self.appended))

    def run(self, blocks: int) -> None:
        for _ in range(blocks):
            self.block()
            if self.rng.random() < 0.3:
                self.of_writer()
            if self.rng.random() < 0.4:
                self.check()
            if self.rng.random() < 0.15:
                self.logs.close()
                self.begin()
        self.check()
        self.logs.close()
        with lastword.open(self.place) as logs:
            for name in NAMES:
                assert dict(logs.state(name)) == self.stored[name]


@pytest.mark.parametrize("seed", range(min(SEQUENCES, 8)))
def test_blocks_are_changes_of_dicts(tmp_path: Path, seed: int) -> None:
    Histories(str(tmp_path / "log"), random.Random(seed)).run(BLOCKS)


@pytest.mark.slow
def test_many_blocks(tmp_path: Path) -> None:
    for seed in range(8, max(SEQUENCES, 8 + few(96))):
        place = f"memory://tx-model-{seed}/log" if seed % 3 == 0 else str(tmp_path / str(seed))
        Histories(place, random.Random(seed)).run(BLOCKS)
