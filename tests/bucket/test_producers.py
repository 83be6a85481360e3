"""A commit to a bucket writes a producer snapshot when the log has grown enough: bytes, and the replay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api import cleaning
from lastword.api.bucket_dirs import in_private
from lastword.api.logs import LogDir
from lastword.api.open_dirs import OpenDirs
from lastword.api.short_commits import ShortCommits
from lastword.bucket.files import BucketFiles
from lastword.clock import ManualClock
from lastword.errors import SequenceGapError
from lastword.files import DEFAULT
from lastword.partition import joining, snapshots
from lastword.partition import open as opening
from lastword.partition.log import PartitionLog
from lastword.partition.producer_state import KEPT_BATCHES, PRODUCER_EXPIRATION_MS, Producer
from lastword.partition.removal_log import RemovalLog
from lastword.partition.snapshots import Snapshots, replay
from lastword.partition.tail import Tail
from lastword.records.batch import BatchBuilder
from tests.bucket.conftest import on_double
from tests.bucket.turns import patched
from tests.fakes.manifests import in_memory
from tests.fakes.objects import Bucket as Objects
from tests.naive.pack import Record, encode_batch
from tests.support.cpu import seldom_collected
from tests.support.exhaustive import stride

START_MS = 1_795_168_800_000
TRANSACTIONAL, CONTROL = 0x10, 0x20
HISTORIES = range(0, 400, stride(19))
HOUR_MS = 3_600_000
REWRITTEN = (1, 3, 5, 7)
"""Histories of which one needs the snapshot that is written before a rewrite."""
TRIMMED = 54
CUT = 51
"""A history in which a reader saw a transaction that was cut off, and the log grew again."""
"""A history that is cut below the newest snapshot after a trim."""


def opened(objects: Objects, clock: ManualClock, mode: str = "a") -> LogDir:
    return on_double(objects, mode, clock=clock, seed=clock.now_ms(), log_cleaner_enable=False)


def batch(
    producer: int, sequence: int, *, epoch: int = 0, value: bytes = b"v", transactional: bool = False, at: int
) -> bytes:
    builder = BatchBuilder(
        producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    builder.append(at, b"k%d" % (sequence % 3), value)
    return builder.build()


def append(logs: LogDir, *batches: bytes, partitions: int = 1) -> None:
    """Append batches to each partition, in one commit."""

    def work(dirs: OpenDirs) -> None:
        for partition in range(partitions):
            dirs.log("t", partition).append_batches(batches)

    logs.dirs.begin_append(("t",), work, 1).result()  # type: ignore[attr-defined]


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("known", "writing", "most"),
    [(10, 10, 1.3), pytest.param(200, 10, 1.3, marks=pytest.mark.slow)],
    ids=["each known producer writes", "few of the known producers write"],
)
def test_a_commit_sends_little_more_than_the_batches_of_many_producers(
    known: int, writing: int, most: float
) -> None:
    partitions, objects, clock, rng = 20, Objects(), ManualClock(START_MS), random.Random(1)
    sequences: Counter[int] = Counter()
    sent, size = [], []
    with opened(objects, clock) as logs:
        logs.create_topic("t", partitions, cleanup_policy="delete")
        for commit in range(40):
            numbers = range(known) if not commit else [(commit * writing + n) % known for n in range(writing)]
            batches = [batch(n, sequences[n], value=rng.randbytes(100), at=clock.now_ms()) for n in numbers]
            sequences.update(numbers)
            before = sum(objects.sent.values())
            append(logs, *batches, partitions=partitions)
            clock.advance(250)
            sent.append(sum(objects.sent.values()) - before)
            size.append(partitions * sum(map(len, batches)))
    assert sum(sent[1:]) <= most * sum(size[1:])
    assert sent[0] <= (1 + 46 / 170 + 0.1) * size[0]


# ---------------------------------------------------------------- the state


def fields(producer: Producer, expires: bool) -> tuple[Any, ...]:
    """Return the fields of a producer that a snapshot has: one timestamp, of its newest batch.

    A producer that was dropped and writes again may have the coordinator epoch of an older snapshot.
    """
    return (
        *(producer.producer_id, producer.epoch, producer.last_timestamp),
        None if expires else producer.coordinator_epoch,
        *(newest[:3] for newest in producer.batches[-1:]),
        producer.transaction_start,
    )


class History:
    """Random operations on a log of one partition: the same ones for a seed, whatever the snapshots are."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.expires = seed % 2 == 0  # not with short commits: a log that is opened again drops producers
        self.clock, self.now_ms = ManualClock(START_MS), START_MS
        self.objects = Objects()
        self.policy = self.rng.choice(("delete", "compact"))
        self.next: dict[int, tuple[int, int]] = {}  # epoch and sequence by producer
        self.open: set[int] = set()  # producers with an open transaction
        self.coordinator_epoch = 0
        self.is_cut = False
        self.logs = self.opened()
        self.logs.create_topic("t", cleanup_policy=self.policy, min_cleanable_dirty_ratio=0)
        self.reader, self.looks = self.opened("r"), random.Random(seed)

    def opened(self, mode: str = "a") -> LogDir:
        self.clock.advance(1)  # another process draws other numbers
        return opened(self.objects, self.clock, mode)

    def run(self, steps: int) -> Iterator[object]:
        """Yield after each step what a new process reads: producers, and the last stable offset."""
        for _ in range(steps):
            self.step()
            yield self.state()
        self.logs.close()
        self.reader.close()

    def state(self) -> object:
        with self.opened() as logs:
            dirs = logs.dirs
            log = in_private(dirs._bucket, dirs._load, self.clock, lambda own: own.log("t", 0))  # type: ignore[attr-defined]
            stable = dirs.view("t", 0).stable_offset
        assert log.stable_offset == stable
        if self.looks.random() < 0.5:  # a server that was not asked meanwhile
            dirs = self.reader.dirs
            dirs.refresh()
            assert dirs.served_log(dirs.log_dir("t", 0), "t", 0).stable_offset == stable
        if log.log_start < stable < log.log_end:
            assert any(stable == h.base_offset for s in log.segments for h in s.headers(0) if h.transactional)
        forgets = self.is_cut and self.policy == "compact"  # cleaning leaves of a producer its last batch
        producers = [] if forgets else log.producers
        return log.log_end, stable, [fields(producer, self.expires) for producer in producers]

    def step(self) -> None:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.55:
            self.append(rng.choice((1, 1, 1, 2, 6)))
        elif kind < 0.65:
            self.logs["t"].extend([(b"k%d" % rng.randrange(3), rng.randbytes(20))])
        elif kind < 0.75:
            self.rewrite()
        elif kind < 0.80:
            self.logs.dirs.refresh()
            view = self.logs.dirs.view("t", 0)
            self.logs["t"].trim(max(view.log_start, view.log_end - rng.randrange(12)))
        elif kind < 0.85:
            self.truncate()
        elif kind < 0.95:
            self.logs.close()
            self.logs = self.opened()
            self.coordinator_epoch += 1
        elif self.expires:
            self.now_ms += rng.choice((1000, 7 * HOUR_MS, PRODUCER_EXPIRATION_MS + HOUR_MS))
            self.clock.advance(self.now_ms - self.clock.now_ms())
            self.logs.close()  # a log that stays open drops producers at its next roll only
            self.logs = self.opened()

    def append(self, count: int) -> None:
        rng, batches = self.rng, []
        for _ in range(count):
            producer = rng.randrange(20)
            epoch, sequence = self.next.get(producer, (0, 0))
            if producer in self.open and rng.random() < 0.5:
                batches.append(self.marker(producer, epoch))
                self.open.remove(producer)
                continue
            if producer not in self.open and rng.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            transactional = producer in self.open or (producer < 5 and rng.random() < 0.5)
            if transactional:
                self.open.add(producer)
            data = batch(
                *(producer, sequence),
                epoch=epoch,
                value=rng.randbytes(rng.choice((1, 1, 100))),
                transactional=transactional,
                at=self.now_ms,
            )
            self.next[producer] = epoch, sequence + 1
            batches.append(data)
        append(self.logs, *batches)

    def marker(self, producer: int, epoch: int) -> bytes:
        content = bytes([0, 0, 0, self.rng.randrange(2)]), self.coordinator_epoch.to_bytes(6)
        record = Record(0, self.now_ms, *content)
        return encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer=(producer, epoch, -1))

    def rewrite(self) -> None:
        if self.policy == "compact":
            self.logs.clean("t")
        else:
            self.logs.dirs.transaction(lambda dirs: cleaning.join(dirs, "t", 0))

    def truncate(self) -> None:
        """Cut the end. In a log that was cleaned each producer goes on with a new epoch."""

        def work(dirs: OpenDirs) -> None:
            log = dirs.log("t", 0)
            offset = max(log.log_start, log.log_end - self.rng.randrange(self.rng.choice((4, 25))))
            dirs.log_dir("t", 0).truncate("t", 0, offset)
            for producer in [*self.next]:
                known = log.producer(producer)
                if self.policy == "compact":
                    self.next[producer] = self.next[producer][0] + 1, 0
                elif known is None or known.is_expired(self.now_ms, PRODUCER_EXPIRATION_MS):
                    self.next[producer] = 99, 0
                else:
                    self.next[producer] = known.epoch, known.last_sequence + 1
            self.open = {known.producer_id for known in log.producers if known.transaction_start is not None}

        self.logs.dirs.transaction(work)
        self.is_cut = True


def states(seed: int, patch: pytest.MonkeyPatch, replayed_bytes: int) -> list[object]:
    patch.setattr(BucketFiles, "replayed_bytes", replayed_bytes)
    patch.setattr(joining, "FILES_FREE", 6)
    history = History(seed)
    if history.expires:
        patch.setattr(ShortCommits, "commit", lambda *_: False)
    with patched(*in_memory()), seldom_collected():
        return list(history.run(40))


@pytest.mark.slow
@pytest.mark.parametrize("seed", HISTORIES)
def test_a_replay_gives_the_state_of_a_snapshot_in_each_commit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert states(seed, monkeypatch, 20) == states(seed, monkeypatch, 0)


def differ(seed: int, patch: pytest.MonkeyPatch) -> bool:
    try:
        return states(seed, patch, 20) != states(seed, patch, 0)
    except AssertionError:  # a reader differs from another one
        return True


def test_planted_what_is_above_the_newest_snapshot_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tail, "secure_snapshot", lambda self, base_offset, **given: None)
    assert any(differ(seed, monkeypatch) for seed in REWRITTEN)


def test_planted_a_trim_writes_no_snapshot_below_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not differ(TRIMMED, monkeypatch)
    monkeypatch.setattr(Snapshots, "exists", lambda self, offset: self.newest >= offset)
    assert differ(TRIMMED, monkeypatch)


def test_planted_a_reader_keeps_its_state_after_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemovalLog, "cut_count", 0)
    assert differ(CUT, monkeypatch)


def test_planted_the_batches_above_the_newest_snapshot_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def skipping(store: Snapshots, segments: Any, log_end: int, **given: Any) -> snapshots.Replayed:
        newest = max(store.offsets(), default=0)
        result = replay(store, segments, newest, **{**given, "limit": None})
        result.state.end_offset, result.exact = log_end, True
        return result

    monkeypatch.setattr(opening, "replay", skipping)
    with pytest.raises((AssertionError, SequenceGapError)):
        assert states(1, monkeypatch, 20) == states(1, monkeypatch, 0)


def test_a_cut_below_the_newest_snapshot_keeps_the_producers_of_trimmed_segments() -> None:
    with opened(Objects(), ManualClock(START_MS)) as logs:
        logs.create_topic("t", cleanup_policy="delete")
        append(logs, batch(0, 0, at=START_MS), batch(1, 0, transactional=True, at=START_MS))
        append(logs, batch(2, 0, at=START_MS))
        append(logs, batch(3, 0, value=bytes(6000), at=START_MS))
        logs["t"].trim(2)
        assert producers_of(logs)[1] == [2, 4]
        logs.dirs.transaction(lambda dirs: dirs.log_dir("t", 0).truncate("t", 0, 3))
        log, offsets = producers_of(logs)
        assert offsets == [2]
        assert [p.producer_id for p in log.producers] == [0, 1, 2] and log.stable_offset == 2


def test_a_reader_that_saw_an_open_transaction_reads_the_log_after_a_cut() -> None:
    objects, clock = Objects(), ManualClock(START_MS)
    with opened(objects, clock) as logs, opened(objects, clock, "r") as reader:
        logs.create_topic("t", cleanup_policy="delete")
        append(logs, batch(0, 0, at=START_MS), batch(1, 0, transactional=True, at=START_MS))
        dirs = reader.dirs
        dirs.refresh()
        log = dirs.served_log(dirs.log_dir("t", 0), "t", 0)
        assert (log.stable_offset, log.log_end) == (1, 2)
        logs.dirs.transaction(lambda dirs: dirs.log_dir("t", 0).truncate("t", 0, 1))
        append(logs, batch(0, 1, at=START_MS), batch(0, 2, at=START_MS))
        dirs.refresh()
        assert max(log.view().snapshot_offsets or ()) < 2
        assert (log.stable_offset, log.log_end) == (3, 3)


# ---------------------------------------------------------------- repeats, and copies


def fill(logs: LogDir) -> LogDir:
    """Write the snapshot of 300 producers, and seven commits of one of them and another one."""
    logs.create_topic("t", cleanup_policy="delete")
    append(logs, *(batch(number, 0, value=bytes(600), at=START_MS) for number in range(300)))
    for sequence in range(1, 8):
        append(logs, batch(7, sequence, at=START_MS), batch(7 + sequence, 1, at=START_MS))
    return logs


def producers_of(logs: LogDir) -> tuple[PartitionLog, list[int]]:
    """Return the log as a commit opens it, and the offsets of its snapshots."""
    dirs = logs.dirs
    log = in_private(dirs._bucket, dirs._load, dirs.clock, lambda own: own.log("t", 0))  # type: ignore[attr-defined]
    return log, Snapshots(log.files, log.directory).offsets()


def test_the_last_five_batches_are_recognized_where_snapshots_are_rare() -> None:
    objects, clock = Objects(), ManualClock(START_MS)
    fill(opened(objects, clock)).close()
    for reader in range(2):
        with opened(objects, clock) as logs:
            opened_log, offsets = producers_of(logs)
            assert offsets == [0, 300] and opened_log.log_end == 314, reader
            places = []
            for sequence in range(7, 7 - KEPT_BATCHES, -1):
                append(logs, batch(7, sequence, at=START_MS))
                places.append(producers_of(logs)[0].log_end)
            assert places == [314] * KEPT_BATCHES
            append(logs, batch(300 - 1, 0, at=START_MS))  # that of the snapshot
            with pytest.raises(SequenceGapError):
                append(logs, batch(7, 1, at=START_MS))


def test_a_copy_to_a_directory_has_a_snapshot_at_its_log_end(url: str, tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with fill(lastword.open(url, "a", lastword_commit_linger_ms=0, clock=clock)) as logs:
        log, offsets = producers_of(logs)
    assert offsets == [0, 300] and len(log.producers) == 300
    lastword.copy(url, tmp_path / "copy")
    store = Snapshots(DEFAULT, str(tmp_path / "copy" / "t-0"))
    assert store.offsets()[-1] == 314
    assert [fields(p, False) for p in store.read(314)] == [fields(p, False) for p in log.producers]


def test_a_server_reads_what_it_replays_with_a_request_for_each_commit() -> None:
    partitions, commits, objects, clock = 5, 8, Objects(), ManualClock(START_MS)
    with opened(objects, clock) as logs:
        logs.create_topic("t", partitions, cleanup_policy="delete")
        append(logs, *(batch(n, 0, value=bytes(600), at=START_MS) for n in range(100)), partitions=partitions)
        for sequence in range(1, commits):
            append(logs, batch(7, sequence, value=bytes(1100), at=START_MS), partitions=partitions)
    with opened(objects, clock) as logs:
        logs.dirs.serve(lambda topics: None)
        before = objects.requests["range"]
        logs.dirs.read_ahead_of_commits()
        assert objects.requests["range"] - before == commits
        append(logs, batch(7, commits, at=START_MS), partitions=partitions)
        assert [logs.dirs.view("t", n).stable_offset for n in range(partitions)] == [100 + commits] * 5
        assert objects.requests["range"] - before == commits


def test_a_process_that_replayed_many_segments_writes_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each process that appends in turn with another one would read them again."""
    objects, clock = Objects(), ManualClock(START_MS)
    with opened(objects, clock) as logs:
        logs.create_topic("t", 1, cleanup_policy="delete")
        append(logs, *(batch(number, 0, at=clock.now_ms()) for number in range(50)))
        for sequence in range(1, snapshots.MANY_REPLAYED + 3):
            append(logs, batch(0, sequence, at=clock.now_ms()))
    for producer, behind in ((1, False), (2, True)):
        with opened(objects, clock) as logs:
            files = logs.dirs.log_dir("t", 0).files  # type: ignore[attr-defined]
            newest = Snapshots(files, logs.dirs.log_dir("t", 0).directory("t", 0)).offsets()[-1]  # type: ignore[attr-defined]
            assert (newest == logs.topic("t").bounds()[0][1]) == behind
            append(logs, batch(producer, 1, at=clock.now_ms()))
