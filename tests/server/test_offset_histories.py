"""Random commits, transactions and deletions of offsets, with restarts, compared with a model."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.protocol import codes
from lastword.protocol.messages import DeleteGroupsRequest
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import Client, offset_delete
from tests.server.writer import Writer, offset_of

GROUPS, PRODUCERS = "ab", "xyz"
STEPS = 60
NONE = (-1, 0)
UNSTABLE = (-1, codes.UNSTABLE_OFFSET_COMMIT)


class Model:
    """The offsets of partition users-0 by group. The record with the largest number wins."""

    def __init__(self) -> None:
        self.records = 0
        self.committed: dict[str, tuple[int, int]] = {}
        self.undecided: dict[str, dict[str, tuple[int, int]]] = {producer: {} for producer in PRODUCERS}

    def commit(self, group: str, offset: int, producer: str | None = None) -> None:
        self.records += 1
        offsets = self.committed if producer is None else self.undecided[producer]
        offsets[group] = (self.records, offset)

    def end(self, producer: str, *, commit: bool) -> None:
        for group, record in self.undecided[producer].items():
            if commit:
                self.committed[group] = max(record, self.committed.get(group, record))
        self.undecided[producer] = {}

    def delete(self, group: str) -> None:
        for offsets in (self.committed, *self.undecided.values()):
            offsets.pop(group, None)

    def read(self, group: str) -> list[tuple[int, int]]:
        """Return what a reader and a reader of stable offsets get."""
        committed = (self.committed[group][1], 0) if group in self.committed else NONE
        is_open = any(group in offsets for offsets in self.undecided.values())
        return [committed, UNSTABLE if is_open else committed]


@pytest.mark.parametrize("seed", range(12))
def test_offsets_are_those_of_the_newest_records(tmp_path: Path, seed: int) -> None:
    rng, clock, model = random.Random(seed), ManualClock(), Model()
    with lastword.open(tmp_path, "a", files=UNSYNCED, clock=clock, log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="delete")
        with ExitStack() as stack:
            writers: dict[str, Writer] = {}

            def restart() -> Client:
                stack.close()
                server = stack.enter_context(lastword.serve(logs, "127.0.0.1:0"))
                client = stack.enter_context(Client(server))
                for writer in writers.values():
                    writer.client = client
                return client

            client = restart()
            for name in PRODUCERS:
                writers[name] = Writer(client, clock, name)
                writers[name].init()
            for step in range(STEPS):
                group, producer = rng.choice(GROUPS), rng.choice(PRODUCERS)
                what = rng.choices(
                    ("commit", "add", "end", "offset", "group", "restart"), (3, 6, 4, 1, 1, 1)
                )[0]
                if what == "commit":
                    assert client.commit(step, group) == 0
                    model.commit(group, step)
                elif what == "add":
                    assert writers[producer].commit_offset(step, group) == 0
                    model.commit(group, step, producer)
                elif what == "end":
                    is_commit = rng.random() < 0.7
                    assert writers[producer].end(commit=is_commit) in (0, codes.INVALID_TXN_STATE)
                    model.end(producer, commit=is_commit)
                elif what in ("offset", "group"):
                    body = DeleteGroupsRequest(groups_names=[group])
                    client.ask(body if what == "group" else offset_delete(group))
                    model.delete(group)
                else:
                    client = restart()
                for name in GROUPS:
                    read = [offset_of(client, stable=stable, group=name) for stable in (False, True)]
                    assert read == model.read(name), (seed, step, what)
