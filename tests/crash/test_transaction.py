"""Kills and power cuts while `LogDir.transaction` commits: each transaction is whole or not there.

The process works on `ForgetfulFiles`, which gives the directories that a kill or a power cut may leave at
each moment. A reader looks at such a directory as it is, and then it is opened to write.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api import transaction
from lastword.api.transaction import Committer
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.logdir.transaction_state import TRANSACTIONS_TOPIC
from lastword.partition import PartitionLog
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.failing import FailingFiles
from tests.fakes.forgetful import ForgetfulFiles, Image, forget_all, keep_all
from tests.fakes.hasty import HastyFiles
from tests.support.exhaustive import stride

TOPICS = ("a", "b", "c")
FOREIGN = 77
SETTINGS: dict[str, Any] = {"log_cleaner_enable": False}
JSON = {"cleanup_policy": "compact", "key_serializer": "str", "value_serializer": "json"}


def topics_of(number: int) -> tuple[str, ...]:
    """Return the topics that a transaction changes: all, two in turn, or one."""
    return (TOPICS, ("a", "b"), ("c",), ("b", "c"))[number % 4]


def write(root: Path, clock: ManualClock, transactions: int = 6) -> ForgetfulFiles:
    """Commit transactions over several partitions and of one; mark the journal when a block has ended."""
    with lastword.open(root, "a", files=HastyFiles(), clock=clock, **SETTINGS) as logs:
        for topic in TOPICS:
            logs.create_topic(topic, 2 if topic == "b" else 1, segment_bytes=2000, **JSON)
        builder = BatchBuilder(producer_id=FOREIGN, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(clock.now_ms(), b"foreign", b"1")
        logs.create_topic("shared", **JSON)  # no record behind the open transaction is shown
        logs.dirs.log("shared", 0).append_batch(builder.build())
    files = ForgetfulFiles(root, HastyFiles())
    logs = lastword.open(root, "a", files=files, clock=clock, **SETTINGS)
    for number in range(transactions):
        with logs.transaction() as tx:
            for topic in topics_of(number):
                for key in range(4 if number % 3 else 60):  # several batches, and rolls
                    tx.append(topic, f"k{key}", [number, "x" * 30])
            if len(topics_of(number)) > 1:
                tx.append("shared", "k", number)
                tx.position("p", number)
        files.mark(str(number))
        if number == 3:
            with pytest.raises(KeyError), logs.transaction() as tx:
                tx.append("a", "k0", "never")
                raise KeyError
    logs.close()
    files.mark("closed")
    return files


def in_partition(logs: lastword.LogDir, topic: str, partition: int) -> dict[int, int]:
    """Return how many records of each transaction a committed read shows."""
    counts: dict[int, int] = {}
    for record in logs[topic].read(partition=partition):
        counts[record.value[0]] = counts.get(record.value[0], 0) + 1
    return counts


def check(
    image: Image, directory: Path, clock: ManualClock, whole: dict[tuple[str, int], dict[int, int]]
) -> set[int]:
    """Return the transactions that are there."""
    image.write(directory)
    with lastword.open(directory, clock=clock) as logs:  # a reader without the lock
        for topic, partition in whole:
            for number, count in in_partition(logs, topic, partition).items():
                assert count == whole[topic, partition][number], f"{image.label}: half in {topic}-{partition}"
    with lastword.open(directory, "a", files=UNSYNCED, clock=clock, **SETTINGS) as logs:
        seen = {tp: in_partition(logs, *tp) for tp in whole}
        there = {number for counts in seen.values() for number in counts}
        for tp, counts in whole.items():
            assert seen[tp] == {n: c for n, c in counts.items() if n in there}, f"{image.label}: half: {seen}"
        done = [int(mark) for mark in image.marks if mark != "closed"]
        assert there >= set(done), f"{image.label}: lost"
        assert there <= {*done, len(done)}, f"{image.label}: {there} after {done}"
        positions = [number for number in there if len(topics_of(number)) > 1]
        assert logs.position("p") == max(positions, default=None), image.label
        opened = logs.transactions()
        assert [(t.topic, t.producer_id) for t in opened] == [("shared", FOREIGN)], f"{image.label}: {opened}"
        with logs.transaction() as tx:  # it goes on
            for topic in TOPICS:
                tx.append(topic, "k0", [1000, ""])
        problems = [problem for problem in logs.verify().problems if problem.code != "bad-synced"]
        assert not problems, f"{image.label}: {problems}"
    assert not (directory / names.TRANSACTION).exists()
    return there


def whole_of(root: Path, clock: ManualClock) -> dict[tuple[str, int], dict[int, int]]:
    with lastword.open(root, clock=clock) as logs:
        return {
            (topic, n): in_partition(logs, topic, n)
            for topic in TOPICS
            for n in range(logs[topic].partitions)
        }


@pytest.mark.slow
def test_kills_and_power_cuts(tmp_path: Path) -> None:
    clock = ManualClock()
    files = write(tmp_path / "live", clock)
    whole = whole_of(tmp_path / "live", clock)
    moments = range(1, len(files.journal) + 1, stride(17))
    outcomes = set()
    for image in itertools.islice(files.images(moments, seeds=range(2)), 0, None, stride(37)):
        outcomes.add(len(check(image, tmp_path / "image", clock, whole)))
    assert len(outcomes) > 3


def _nothing(self: Any, logs: Any) -> None:
    """In place of `Committer._sync`."""


def _only_these(self: Any, logs: Any) -> None:
    """In place of `Committer._sync`: markers of earlier transactions are not synced."""
    for log in logs:
        log.sync()


PLANTED = {
    "batches that are not synced": (Committer, "_sync", _nothing),
    "markers of earlier transactions that are not synced": (Committer, "_sync", _only_these),
    "a decision that is not synced": (PartitionLog, "sync", None),
    "a decision of another transaction": (transaction, "_is_of", lambda producer, epoch: True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, fault = PLANTED[name]
    sync = PartitionLog.sync

    def but_decisions(log: PartitionLog) -> None:
        if log.topic != TRANSACTIONS_TOPIC:
            sync(log)

    clock = ManualClock()
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, fault or but_decisions)
        files = write(tmp_path / "live", clock)
    whole = whole_of(tmp_path / "live", clock)
    after = [
        number + 1
        for number, op in enumerate(files.journal)
        if op.kind == "mark" or (op.kind == "fsync" and "_state" in files.journal[number].path)
    ]
    if attribute == "_is_of":
        monkeypatch.setattr(owner, attribute, fault)
        after = list(range(after[4], after[7]))  # batches of the next transaction, without its decision
    with pytest.raises(AssertionError):
        for upto in after:
            policy = keep_all if attribute == "_is_of" else forget_all
            check(files.crash(upto, policy, name), tmp_path / f"image{upto}", clock, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ENOSPC", "EIO on fsync"])
def test_a_call_that_fails_before_a_power_cut(tmp_path: Path, kind: str) -> None:
    """A transaction whose block has ended is there, also after one that failed; none is half there."""
    clock, keys, image = ManualClock(), [f"k{number}" for number in range(4)], tmp_path / "image"
    for number in itertools.count(step=stride(4)):
        root = tmp_path / str(number)
        with lastword.open(root, "a", files=HastyFiles(), clock=clock, **SETTINGS) as logs:
            for topic in TOPICS:
                logs.create_topic(topic, 2, **JSON)
        forgetful = ForgetfulFiles(root, HastyFiles())
        files = FailingFiles(forgetful, kind, number)
        logs = lastword.open(root, "a", files=files, clock=clock, **SETTINGS)
        files.arm()
        allowed: set[int | None] = {None}
        for value in range(3):
            try:
                with logs.transaction() as tx:
                    for topic, key in itertools.product(TOPICS, keys):
                        tx.append(topic, key, value)
                allowed = {value}
            except LastwordError as error:
                allowed |= {value} if "an opening to write will show" in str(error) else set()
        for policy in (keep_all, forget_all):
            forgetful.crash(drop=policy).write(image)
            with lastword.open(image, "a", files=UNSYNCED, clock=clock, **SETTINGS) as after:
                values = {after[topic].get(key) for topic, key in itertools.product(TOPICS, keys)}
                assert len(values) == 1 and values <= allowed, (number, values, allowed)
                assert not after.transactions(), number
            shutil.rmtree(image)
        files.disarm()
        with suppress(LastwordError):
            logs.close()
        if not files.hit:
            assert number > 10
            return
