"""Cleanings by accounts, built on a view and published where the log is open; without a Spark session."""

import pickle
import random
import shutil

import pytest

import lastword
from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.partition import prepare
from lastword.cleaner.policy.plan import CleanRequest
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.spark import remote
from lastword.spark.remote import LedgerParams

NOW = 1_700_000_000_000
MAP_BYTES = 1 << 20


@pytest.fixture
def root(tmp_path):
    """Write one partition of about forty segments; a tenth of the records are tombstones."""
    rng = random.Random(3)
    with lastword.open(str(tmp_path / "log"), "a", clock=ManualClock(NOW)) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=4000)
        for _ in range(150):
            topic.extend(
                [(b"k%d" % rng.randrange(300), None if rng.random() < 0.1 else b"v" * 90) for _ in range(10)]
            )
    return tmp_path / "log"


def prepared(directory):
    log, config = directory.log("t", 0), directory.topic_config("t")
    request = CleanRequest(directory.first_dirty("t", 0), strategy="generational", map_bytes=MAP_BYTES)
    plan = prepare(log, config, request)
    return log, config, plan


def built(directory):
    """Build as on another machine: pickle the log, the plan and the result."""
    log, config, plan = prepared(directory)
    given = pickle.loads(pickle.dumps((log.directory, config, plan, LedgerParams(0, (-1, 0), "drive", 0.3))))
    view = PartitionView.load(DirectorySegments(DEFAULT, given[0]))
    build = remote.build(view, *given[1:], None, CleanContext(DEFAULT, directory.clock))
    return log, pickle.loads(pickle.dumps(build))


def opened(root):
    return LogDirectory.open(str(root), "a", clock=ManualClock(NOW))


def read(root):
    with lastword.open(str(root)) as logs:
        return [(r.offset, r.key, r.value) for r in logs.topic("t").read()]


def saved(log):
    """Open the saved accounts as the next process does."""
    return Ledger.open(DEFAULT, log.directory, log.segments, map_bytes=MAP_BYTES)


def test_it_comes_to_what_a_round_in_one_comes_to(root, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(root, other)
    with lastword.open(str(other), "a", clock=ManualClock(NOW)) as logs:
        (expected,) = logs.clean("t")
    with opened(root) as directory:
        log, build = built(directory)
        (done,) = remote.publish(
            log, build, record_first_dirty=lambda offset: directory.set_first_dirty("t", 0, offset)
        )
        first_dirty = directory.first_dirty("t", 0)
        ledger = saved(log)
        assert not ledger.rebuilt_because and ledger.limit == done.end
        again = remote.scan(
            PartitionView.load(DirectorySegments(DEFAULT, log.directory)),
            directory.topic_config("t"),
            prepared(directory)[2],
            LedgerParams(ledger.write_clock, ledger.reached, "drive", 0.3),
            CleanContext(DEFAULT, directory.clock, dry=True),
        )
        assert again.stats.account.segments == build.after.account.segments
    assert (done.removed, done.written_bytes, done.end) == (
        expected.removed,
        expected.written_bytes,
        expected.end,
    )
    assert done.tombstones.count == expected.tombstones.count > 0
    assert read(root) == read(other)
    with LogDirectory.open(str(other), "r") as directory:
        assert directory.first_dirty("t", 0) == first_dirty


def test_killed_before_the_accounts_have_their_name(root):
    """The accounts saved before do not fit the log any more, and are discarded; the new ones are removed."""
    with opened(root) as directory:
        log, build = built(directory)
        remote.save(DEFAULT, log.directory, build.accounts)  # as if by an earlier round
        assert saved(log).rebuilt_because, "they speak of swaps that were never made"
        (done,) = remote.publish(log, build, record_first_dirty=lambda offset: None)
        assert done.complete and not saved(log).rebuilt_because, "the swaps make them true"
    records = read(root)
    with lastword.open(str(root), "a", clock=ManualClock(NOW)) as logs:
        logs.topic("t").extend([(b"k%d" % n, b"w" * 90) for n in range(100)])
    with opened(root) as directory:
        log, build = built(directory)
        rounds = remote.publish(log, build, record_first_dirty=lambda offset: None)
        next(rounds)  # the swap is done; the driver dies here
        assert saved(log).rebuilt_because
        left = [path for path in (root / "t-0" / names.PRIVATE).iterdir() if path.is_dir()]
        assert [str(path) for path in left] == [build.accounts]
        prepared(directory)
        assert not any(path.is_dir() for path in (root / "t-0" / names.PRIVATE).iterdir())
        log, build = built(directory)
        (done,) = remote.publish(log, build, record_first_dirty=lambda offset: None)
        assert done.removed.total == 0 and not saved(log).rebuilt_because
    newest = {key: value for _, key, value in records} | {b"k%d" % n: b"w" * 90 for n in range(100)}
    assert {key: value for _, key, value in read(root)} == newest
