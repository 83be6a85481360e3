"""A round in many steps: the same files as in one step, whatever is killed, repeated or left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest

import lastword
from lastword.cleaner import job_files
from lastword.cleaner.engine import sinks
from lastword.cleaner.engine.partition import chosen_plan, prepare
from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.engine.sinks import Publisher
from lastword.cleaner.policy.plan import CleanRequest
from lastword.errors import CorruptBatchError, CorruptFileError
from lastword.files import DEFAULT
from lastword.partition import leases
from lastword.partition.log import PartitionLog
from lastword.spark import job as jobs
from lastword.spark import sharded
from lastword.spark.job import ShardedJob
from tests.build import HOUR, SALT, LogBuilder
from tests.cleaner.transactional import Producer
from tests.support.damage import flip
from tests.support.exhaustive import stride

DAY = 24 * HOUR


class Killed(BaseException):
    pass


def a_log(root: Path, seed: int, transactions: bool = True, codec: int = 0) -> LogBuilder:
    """Write some hundred records in small segments: deletes, null keys, three transactional producers."""
    rng = random.Random(seed)
    log = LogBuilder(root, segment_bytes=2000, delete_retention_ms=HOUR, index_interval_bytes=200)
    log.topic("users").codec_of(codec)
    producers = [Producer(log, 10 + i) for i in range(3)] if transactions else []
    open_ones: set[int] = set()
    for _ in range(120):
        pairs: list[tuple[Any, Any]] = []
        for _ in range(rng.randint(1, 6)):
            key = f"key-{rng.randrange(40)}"
            pairs.append((key, None if rng.random() < 0.2 else rng.randrange(10**6)))
        if producers and rng.random() < 0.5:
            i = rng.randrange(3)
            if i in open_ones and rng.random() < 0.4:
                (producers[i].commit if rng.random() < 0.5 else producers[i].abort)()
                open_ones.discard(i)
            else:
                producers[i].put(*pairs)
                open_ones.add(i)
        else:
            log.batch(pairs)
        log.wait(60_000)
    for i in open_ones:
        producers[i].abort()
    return log.roll()


def begun(log: LogBuilder, **how: Any) -> ShardedJob:
    """Begin the divided cleaning of a log."""
    plan = prepare(log.log, log.config, CleanRequest(log.first_dirty))
    return jobs.start(log.files, log.directory, log.log.segments, plan, salt=SALT, **how)


def all_steps(log: LogBuilder, job: ShardedJob, twice: bool = False) -> None:
    """Do every step that is left."""
    step = steps(log, job, twice)
    while step():
        pass


def steps(log: LogBuilder, job: ShardedJob, twice: bool = False) -> Callable[[], bool]:
    """Return a function that does the next step; it returns False if no step is left."""

    def one() -> bool:
        files, clock = log.files, log.clock
        for left, step in (
            (jobs.units_left, lambda n: sharded.extract(files, job.directory, n)),
            (jobs.shards_left, lambda n: sharded.resolve_shard(files, job.directory, n)),
            (jobs.marks_left, lambda n: sharded.mark_unit(files, job.directory, n)),
        ):
            numbers = left(files, job)
            if numbers:
                for _ in range(1 + twice):
                    met = step(numbers[0])
                if isinstance(met, sharded.TransactionMet):
                    sharded.read_transactions(files, job.directory, met.offset)
                return True
        if not Path(f"{job.scratch}/groups.json").exists():
            sharded.merge(files, job)
            return True
        numbers = jobs.groups_left(files, job)
        if not numbers:
            return False
        for _ in range(1 + twice):
            sharded.rewrite_group(files, job.directory, numbers[0], clock.now_ms(), clock)
        return True

    return one


def finish(log: LogBuilder, job: ShardedJob, kill_before_swap: int = -1) -> CleanRound:
    """Publish the round; raise `Killed` before the n-th swap."""
    done = set(jobs.published(log.files, job).values())
    swaps, real = count(len(done)), sinks.swap_group

    def swap(partition: Any, built: Any) -> Any:
        if next(swaps) == kill_before_swap:
            raise Killed
        return real(partition, built)

    prepared = sharded.prepared(log.files, job, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinks, "swap_group", swap)
        round_ = Publisher(log.log, prepared.plan, log._record_first_dirty, done).publish(prepared)
    jobs.remove(log.files, job.directory)
    return round_


def clean(log: LogBuilder, *, twice: bool = False, **how: Any) -> CleanRound:
    job = begun(log, **{"shards": 3, "unit_bytes": 5000} | how)
    all_steps(log, job, twice)
    return finish(log, job)


def segments(log: LogBuilder) -> dict[str, bytes]:
    return {name: data for name, data in log.tree().items() if name.endswith(("log", "index"))}


def same(a: CleanRound, b: CleanRound) -> None:
    for name in ("records_read", "records_kept", "removed", "written_bytes", "freed_bytes", "certificate",
                 "segments_before", "segments_after", "end", "complete", "read_bytes"):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name
    assert a.tombstones.count == b.tombstones.count


@pytest.mark.parametrize("seed", range(4))
def test_the_same_files_as_in_one(tmp_path: Path, seed: int) -> None:
    single = a_log(tmp_path / "one", seed, codec=seed)
    parallel = a_log(tmp_path / "many", seed, codec=seed)
    for wait in (0, DAY):
        single.wait(wait)
        parallel.wait(wait)
        expected = single.clean()
        same(clean(parallel, twice=seed % 2 == 0, shards=1 + seed), expected)
        assert segments(parallel) == segments(single)
        assert parallel.first_dirty == single.first_dirty
    assert [p for p in Path(parallel.directory, "lastword").iterdir() if p.name.startswith("sharded")] == []


def test_producers_are_forgotten_at_the_same_time(tmp_path: Path) -> None:
    """A producer expires by the setting, counted from its last marker, not from its last data."""
    logs = []
    for name in ("one", "many"):
        log = a_log(tmp_path / name, 5)
        log.log.tail.producer_expiration_ms = HOUR
        late = Producer(log, 20).put(("late", 1))
        log.wait(HOUR - 60_000)
        late.commit()
        log.batch([("late", 2)])
        log.wait(120_000)
        logs.append(log.roll())
    single, parallel = logs
    for wait in (0, HOUR, DAY):
        single.wait(wait)
        parallel.wait(wait)
        same(clean(parallel), single.clean())
        assert segments(parallel) == segments(single)


def test_a_log_without_transactions_is_not_scanned_for_them(tmp_path: Path) -> None:
    log = a_log(tmp_path / "a", 7, transactions=False)
    twin = a_log(tmp_path / "b", 7, transactions=False)
    job = begun(log)
    all_steps(log, job)
    assert not Path(job.scratch, "transactions.json").exists()
    same(finish(log, job), twin.clean())
    assert segments(log) == segments(twin)


def test_a_plan_tells_the_same_figures(tmp_path: Path) -> None:
    log = a_log(tmp_path, 3)
    expected = log.plan()
    view = log.log.view()
    chosen = chosen_plan(view, log.config, CleanRequest(map_bytes=1 << 20), log.files, log.clock)
    job = jobs.start(
        log.files, log.directory, view.segments, chosen, shards=4, unit_bytes=3000, rewrites=False
    )
    before = segments(log)
    all_steps(log, job)
    plan = sharded.planned(log.files, job)
    assert (plan.write_bytes, plan.free_bytes, plan.segments, plan.read_bytes, plan.exact) == (
        expected.write_bytes,
        expected.free_bytes,
        expected.segments,
        expected.read_bytes,
        True,
    )
    jobs.remove(log.files, job.directory)
    assert segments(log) == before
    assert jobs.unfinished(log.files, log.directory, log.clock) is None


@pytest.mark.slow
def test_killed_anywhere_and_gone_on_with(tmp_path: Path) -> None:
    """Killed before every step and every swap; the result is always that of a round without a kill."""
    twin = a_log(tmp_path / "twin", 11)
    expected = twin.clean()
    twin.abandon().reopen()
    for kill in count(0, stride(3)):
        log = a_log(tmp_path / f"{kill}", 11)
        job = begun(log, shards=6, unit_bytes=5000)
        step = steps(log, job)
        left = kill
        while left and step():
            left -= 1
        swaps = -1
        if left:  # all steps are done: kill a swap
            swaps = left - 1
            try:
                finish(log, job, kill_before_swap=swaps)
                break
            except Killed:
                pass
        log.abandon()
        log.reopen()
        again = jobs.unfinished(log.files, log.directory, log.clock)
        assert again == job
        jobs.go_on(log.files, again)
        all_steps(log, again)
        same(finish(log, again), expected)
        log.abandon().reopen()
        assert segments(log) == segments(twin)
        log.close()
    assert kill > 15


def test_a_job_that_no_longer_fits_is_removed(tmp_path: Path) -> None:
    for number, spoil in enumerate((age, other_segments, lease, half_written, older)):
        log = a_log(tmp_path / str(number), 5)
        job = begun(log, scratch=str(tmp_path))
        steps(log, job)()
        assert jobs.unfinished(log.files, log.directory, log.clock) == job
        spoil(log, job)
        assert jobs.unfinished(log.files, log.directory, log.clock) is None, spoil
        assert not Path(job.directory).exists(), spoil
        if spoil not in (half_written, older):
            assert not Path(job.scratch).exists(), spoil
        log.close()


def age(log: LogBuilder, job: ShardedJob) -> None:
    log.files.set_mtime(f"{job.directory}/job.json", log.clock.now_ms() - jobs.MAX_AGE_MS - 1)


def other_segments(log: LogBuilder, job: ShardedJob) -> None:
    log.clean()


def lease(log: LogBuilder, job: ShardedJob) -> None:
    leases.register(
        log.files, log.directory, "late", 3, log_start=0, log_end=log.log.log_end, now_ms=log.clock.now_ms()
    )


def half_written(log: LogBuilder, job: ShardedJob) -> None:
    Path(job.directory, "job.json").write_text('{"directory": "')


def older(log: LogBuilder, job: ShardedJob) -> None:
    before = replace(job_files.FORM, version=1).encode({"value": job.to_dict()})
    Path(job.directory, "job.json").write_bytes(before)


def test_damage_sets_the_partition_aside(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2, transactions=False)
    path = Path(log.log.segments[2].file)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptBatchError, match="is quarantined"):
        clean(log)
    assert str(log.plan()).startswith("users-0: keep: quarantined")


def test_damage_of_scratch_files_is_no_damage_of_the_log(tmp_path: Path) -> None:
    for number, name in enumerate(
        ("unit-00001.data", "shard-00002.dead", "shard-00000.npz", "unit-00000.npz", "dead-00001.npz")
    ):
        log = a_log(tmp_path / str(number), 2, transactions=False)
        job = begun(log, shards=3, unit_bytes=5000)
        step = steps(log, job)
        with pytest.raises(CorruptFileError, match="not as it was written"):
            while not Path(job.scratch, name).exists():
                assert step()
            path = Path(job.scratch, name)
            data = bytearray(path.read_bytes())
            position = 8 if name.startswith("unit") else len(data) // 2
            if name.endswith("npz"):  # after the header of the first array
                position = 40 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
            data[position] ^= 1
            path.write_bytes(data)
            while step():
                pass
        jobs.remove(log.files, job.directory)
        assert log.plan().action == "clean"
        log.close()


def test_every_bit_of_dead_rows_is_checked(tmp_path: Path) -> None:
    log = a_log(tmp_path, 2, transactions=False)
    job = begun(log, shards=3, unit_bytes=9000)
    step = steps(log, job)
    while jobs.shards_left(log.files, job):
        step()
    path = Path(job.scratch, "shard-00001.dead")
    data = path.read_bytes()

    def read() -> list[bytes]:
        return [sharded._dead_rows(log.files, job, 1, unit).tobytes() for unit in range(len(job.units))]

    whole = read()
    assert len(whole) > 1 and any(map(any, whole))
    damaged = [b"", data[:-1], data[: len(data) // 2], bytes(len(data))]
    for position, byte in enumerate(data):
        damaged += [data[:position] + bytes([byte ^ 1 << bit]) + data[position + 1 :] for bit in range(8)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match="not as it was written") as error:
            assert read() == whole  # no bit may change unseen
        assert error.value.code == "bad-job-file"
    log.close()


@pytest.mark.parametrize(("keys", "shards"), [(20_000, 8), (8_000, 64)], ids=["60%", "84%"])
def test_dead_records_take_less_than_a_third_of_a_byte_of_scratch(
    tmp_path: Path, keys: int, shards: int
) -> None:
    """For each record of the partition, whatever the garbage and the number of shards."""
    rng = random.Random(1)
    with lastword.open(str(tmp_path / "log"), "a", segment_bytes=1 << 20) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend([(b"%d" % rng.randrange(keys), b"v" * 20) for _ in range(50_000)])
        scratch_bytes = dead_bytes(logs.dirs.log("t", 0), shards)
    assert 0.2 < scratch_bytes / 50_000 < 0.3


def test_dead_records_between_gaps_take_little_scratch(tmp_path: Path) -> None:
    """An earlier cleaning left one offset of twenty: a bitmap over offsets would take 2.5 bytes a record."""
    with lastword.open(str(tmp_path / "log"), "a", segment_bytes=1 << 16) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend([(b"often" if n % 20 else b"%d" % n, b"v" * 20) for n in range(100_000)])
        logs.clean("t")
        rng = random.Random(1)
        topic.extend([(b"%d" % n, b"w" * 20) for n in range(0, 100_000, 20) if rng.random() < 0.5])
        records = sum(segment.records for segment in topic.segments())
        assert 7_400 <= records < 7_600
        assert dead_bytes(logs.dirs.log("t", 0), 8) / records < 0.5


def dead_bytes(log: PartitionLog, shards: int) -> int:
    """Return the bytes of a job's files with dead rows and dead bitmaps."""
    log.roll()
    plan = prepare(log, log.config, CleanRequest(0))
    job = jobs.start(DEFAULT, log.directory, log.segments, plan, shards=shards, unit_bytes=1 << 20)
    for left, step in (
        (jobs.units_left, sharded.extract),
        (jobs.shards_left, sharded.resolve_shard),
        (jobs.marks_left, sharded.mark_unit),
    ):
        for number in left(DEFAULT, job):
            step(DEFAULT, job.directory, number)
    return sum(path.stat().st_size for path in Path(job.scratch).iterdir() if "dead" in path.name)


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    log = a_log(tmp_path, 9)
    job = begun(log, shards=3, unit_bytes=5000)
    step = steps(log, job)
    shares = [0.0]
    while step():
        done, total = jobs.done_bytes(log.files, job)
        shares.append(done / total)
    assert shares[-1] == 1.0
    assert all(later >= earlier - 0.34 for earlier, later in pairwise(shares))


def test_damaged_arrays_of_a_job_are_refused(tmp_path: Path) -> None:
    """Every bit is flipped, and a member is empty: NumPy returns it as bytes."""
    path = tmp_path / "unit-00000.npz"
    job_files.write_arrays(DEFAULT, str(path), {"stats": np.arange(3)})
    data = path.read_bytes()
    with ZipFile(path, "w") as members:
        members.writestr("stats.npy", b"")
    damaged = [path.read_bytes(), b"", data[:-1], b"\x93NUMPY" + data]
    for position, byte in enumerate(data):
        damaged += [data[:position] + bytes([byte ^ 1 << bit]) + data[position + 1 :] for bit in range(8)]
    for content in damaged:
        path.write_bytes(content)
        try:
            assert job_files.read_arrays(DEFAULT, str(path))["stats"].tolist() == [0, 1, 2]
        except CorruptFileError as error:
            assert error.code == "bad-job-file"
