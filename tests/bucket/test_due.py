"""A due cleaning that reads nothing: the bound of the garbage, and when it is enough."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

import lastword
from lastword.accounts import PartitionAccount
from lastword.accounts.snapshot import SUMMARY_FORM
from lastword.api.open_dirs import OpenDirs
from lastword.bucket.files import BucketFiles
from lastword.cleaner.drive import DriveCleaner, InlineExecutor
from lastword.cleaner.inspection import DrivePartition, worst_account
from lastword.logdir.checkpoints import TopicPartition
from tests.bucket.test_log import bucket_of

Open = Callable[..., lastword.LogDir]


def garbage_of(account: PartitionAccount) -> int:
    return sum(segment.dead_bytes + segment.blocked_tombstone_bytes for segment in account.segments)


def accounts_of(dirs: OpenDirs) -> tuple[PartitionAccount | None, PartitionAccount]:
    """Return the bound of partition t-0, and its account after a scan."""
    partition = DrivePartition.of(TopicPartition("t", 0), dirs.log_dir("t", 0))
    now_ms = dirs.clock.now_ms()
    worst = worst_account(partition, "drive", now_ms, held=False)
    cleaner = DriveCleaner("drive", [partition], InlineExecutor(), space_target=1.5, clock=dirs.clock)
    return worst, cleaner.inspect(now_ms).partitions[0]


@pytest.mark.parametrize("seed", range(12))
def test_a_scan_never_finds_more_garbage_than_the_bound(opened: Open, seed: int) -> None:
    rng = random.Random(seed)
    logs = opened()
    codec = rng.choice(["uncompressed", "lz4", "gzip"])
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="32KiB", compression_type=codec)
    deletes = rng.choice([0.0, 0.2])

    def value() -> bytes | None:
        if rng.random() < deletes:
            return None
        return rng.choice([rng.randbytes, bytes])(rng.choice([0, 10, 100, 3000]))

    bounds = 0
    for _ in range(12):
        topic.extend([(b"k%d" % rng.randrange(60), value()) for _ in range(rng.choice([1, 5, 40]))])
        worst, account = logs.dirs.transaction(accounts_of)
        if worst is not None:
            bounds += 1
            assert garbage_of(worst) >= garbage_of(account)
            assert worst.total_bytes == account.total_bytes
            assert len(worst.segments) >= len(account.segments)
        if rng.random() < 0.4:
            logs.clean("t", due=rng.random() < 0.5)
    assert bounds >= 8


def test_a_due_cleaning_reads_no_index_if_nothing_can_be_due(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend((b"k%d" % n, b"v" * 100) for n in range(20_000))
    logs.clean(due=True)
    for _ in range(3):
        topic.extend((b"k%d" % n, b"w" * 100) for n in range(500))
        requests.clear()
        assert logs.clean(due=True) == []
        assert requests["put"] == requests["swap"] == 0
        assert requests["get_range"] <= 1  # the end of the log
    # The bound is above the space target now. The garbage itself is below the target.
    topic.extend((b"k%d" % n, b"x" * 100) for n in range(5000))
    requests.clear()
    assert logs.clean(due=True) == []
    assert (requests["put"], requests["swap"]) == (0, 1)  # the summary, in the manifest
    (plan,) = logs.plan(due=True)
    assert plan.action == "keep"


def test_a_few_small_records_make_large_ones_due(opened: Open) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend(
        [(b"small%d" % n, b"") for n in range(1000)] + [(b"large%d" % n, bytes(50_000)) for n in range(9)]
    )
    logs.clean(due=True)
    topic.extend([(b"large%d" % n, b"") for n in range(9)])
    (result,) = logs.clean(due=True)
    assert result.records_read - result.records_kept == 9


def test_files_of_a_program_that_saved_no_largest_record_are_read(
    opened: Open, requests: Counter[str]
) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend((b"k%d" % n, b"v" * 100) for n in range(5000))
    logs.clean(due=True)

    def without_largest(files: BucketFiles) -> None:
        path = f"{files.root}/t-0/lastword/garbage-summary"
        fields = SUMMARY_FORM.load(files, path)
        assert fields is not None and fields.pop("largest") > 100
        SUMMARY_FORM.save(files, path, fields)

    bucket_of(logs).transaction(without_largest)
    topic.append(b"k1", b"new")
    requests.clear()
    assert logs.clean(due=True) == []
    assert requests["swap"] == 1  # a summary, after a scan
    assert logs.verify().ok
