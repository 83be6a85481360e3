"""The garbage index of a log in a bucket between transactions: kept, saved if it pays, never outdated."""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import lastword
from lastword.accounts.ledger import Ledger
from lastword.api import cleaning
from lastword.api.bucket_ledgers import BucketLedgers, _Kept
from lastword.api.open_dirs import OpenDirs
from lastword.bucket.files import BucketFiles
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.ledgers import Ledgers
from lastword.segment import names
from tests.bucket.test_log import bucket_of

Open = Callable[..., lastword.LogDir]
PAIRS = [(b"k%d" % n, b"v" * 100) for n in range(20_000)]
TP = TopicPartition("t", 0)


def ledgers_of(logs: lastword.LogDir) -> BucketLedgers:
    return logs.dirs._ledgers  # type: ignore[attr-defined,no-any-return]


def cleaned(
    logs: lastword.LogDir, pairs: list[tuple[bytes, bytes]] = PAIRS, **settings: Any
) -> lastword.Topic:
    """Make the topic with these records, and clean what is due."""
    topic = logs.create_topic("t", cleanup_policy="compact", **settings)
    topic.extend(pairs)
    logs.clean(due=True)
    return topic


def saved(logs: lastword.LogDir, name: str = names.ACCOUNTS) -> bool:
    return bucket_of(logs).load().snapshot.entry(f"t-0/lastword/{name}") is not None


def newest(logs: lastword.LogDir) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in logs["t"].read(view="newest")}


@pytest.fixture
def opened_ledgers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of the ledgers that were opened from a saved index, or made empty."""
    seen: list[str] = []
    opening = Ledger.open.__func__  # type: ignore[attr-defined]

    def note(cls: type[Ledger], files: object, directory: str, *rest: object, **more: object) -> Ledger:
        seen.append(directory)
        return opening(cls, files, directory, *rest, **more)  # type: ignore[no-any-return]

    monkeypatch.setattr(Ledger, "open", classmethod(note))
    return seen


def test_a_second_cleaning_reads_new_segments_only_and_writes_no_index(
    opened: Open, requests: Counter[str], opened_ledgers: list[str]
) -> None:
    logs = opened()
    topic = cleaned(logs)
    assert len(opened_ledgers) == 1
    for _ in range(2):
        topic.extend([(key, b"w" * 100) for key, _ in PAIRS[:5000]])
        requests.clear()
        assert logs.clean(due=True) == []
        assert len(opened_ledgers) == 1
        assert requests["put"] == 0 and requests["swap"] == 1
    assert not saved(logs)
    topic.extend(PAIRS)
    (result,) = logs.clean(due=True)
    assert result.records_read > result.records_kept
    assert len(opened_ledgers) == 1
    assert newest(logs) == dict(PAIRS)
    assert logs.verify().ok


def test_an_index_is_saved_if_the_scan_that_it_saves_costs_more(
    opened: Open, opened_ledgers: list[str]
) -> None:
    logs = opened()
    cleaned(logs, [(key, bytes(1000)) for key, _ in PAIRS])
    assert saved(logs)
    logs.close()
    again = opened()
    again["t"].append(b"k1", b"new")
    again.clean(due=False)
    assert newest(again)[b"k1"] == b"new"


def test_an_index_of_many_small_segments_is_saved_for_the_requests_of_their_scan(
    opened: Open, requests: Counter[str]
) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    for number in range(40):
        topic.extend(PAIRS[100 * number : 100 * (number + 1)])
    logs.clean("t", due=False)  # nothing is garbage
    assert saved(logs)
    logs.close()
    again = opened()
    again["t"].extend(PAIRS[:500])
    requests.clear()
    again.plan(due=True)  # without the index it takes a request for each segment
    assert requests["get_range"] + requests["get"] <= 5


def test_a_cleaning_that_saves_no_index_removes_the_one_of_the_segments_before(opened: Open) -> None:
    logs = opened()
    cleaned(logs, [(key, bytes(1000)) for key, _ in PAIRS])
    assert saved(logs)
    logs["t"].extend([(key, b"") for key, _ in PAIRS])
    assert logs.clean(due=True)
    assert not saved(logs)


def test_the_ledger_of_a_copy_that_was_not_committed_is_dropped(
    opened: Open, opened_ledgers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, other = opened(), opened()
    topic = cleaned(logs)
    topic.extend(PAIRS[:15_000])
    bucket, upload = bucket_of(logs), bucket_of(logs).upload

    def after_the_other(changes: object) -> object:
        monkeypatch.setattr(bucket, "upload", upload)
        assert other.clean(due=True)  # so our commit is refused
        return upload(changes)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket, "upload", after_the_other)
    opened_ledgers.clear()
    assert logs.clean(due=True) == []
    assert (
        ledgers_of(logs).take(TP) is None or len(opened_ledgers) == 2
    )  # of the other, and of our second run
    topic.extend(PAIRS[:15_000])
    logs.clean(due=True)
    assert newest(logs) == dict(PAIRS)
    assert logs.verify().ok


def test_a_ledger_of_another_object_under_the_same_identity_is_dropped(opened: Open) -> None:
    logs = opened()
    cleaned(logs)
    kept = ledgers_of(logs).take(TP)
    assert kept is not None
    (path,) = kept.logs

    def taken(files: BucketFiles) -> Ledger | None:
        ledgers_of(logs).keep(TP, kept)
        return ledgers_of(logs).of(files).take(TP)

    snapshot = bucket_of(logs).load().snapshot
    assert bucket_of(logs).transaction(taken) is kept.ledger

    def same_facts(files: BucketFiles) -> None:
        """Write the segment again, with its number, size and time."""
        full, facts = f"{files.root}/{path}", files.stat(f"{files.root}/{path}")
        assert facts is not None
        data = files.read_bytes(full)
        with files.open_append(full) as handle:
            handle.truncate(0)
            handle.append(data)
        files.set_mtime(full, facts.mtime_ms)
        after = files.stat(full)
        assert after == facts
        assert taken(files) is None  # the file of the private copy is no stored object

    bucket_of(logs).transaction(same_facts)
    assert bucket_of(logs).load().snapshot.entry(path) != snapshot.entry(path)
    assert bucket_of(logs).transaction(taken) is None


def test_a_kept_ledger_keeps_no_private_copy(opened: Open) -> None:
    logs = opened()
    logs.create_topic("t", cleanup_policy="compact").extend(PAIRS)
    copies: list[weakref.ref[BucketFiles]] = []

    def work(dirs: OpenDirs) -> None:
        assert isinstance(dirs.files, BucketFiles)
        copies.append(weakref.ref(dirs.files))
        cleaning.clean(dirs, "t", 0, due=True, strategy=None, progress=None, stop=None)

    logs.dirs.transaction(work)
    gc.collect()
    assert copies[0]() is None
    assert ledgers_of(logs).take(TP) is not None


def test_ledgers_of_logs_that_are_larger_than_the_memory_are_kept(
    opened: Open, opened_ledgers: list[str]
) -> None:
    """The memory of a ledger is estimated from other ledgers of the topic, not from the bytes of its log."""
    logs = opened(log_cleaner_dedupe_buffer_size="1MiB")
    topic = logs.create_topic("t", partitions=2, cleanup_policy="compact")
    topic.extend([(key, random.Random(key).randbytes(150)) for key, _ in PAIRS[:16_000]])
    logs.clean(due=True)
    assert len(opened_ledgers) == 2
    topic.extend([(b"new" + key, bytes(150)) for key, _ in PAIRS[:4_000]])
    logs.clean(due=True)
    assert len(opened_ledgers) == 2


def test_kept_ledgers_and_those_of_a_copy_share_the_memory(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = opened(log_cleaner_dedupe_buffer_size="1MiB")
    for name in ("t", "u", "v"):
        logs.create_topic(name, partitions=2, cleanup_policy="compact").extend(PAIRS)
    totals: list[int] = []
    make_room = Ledgers._make_room

    def note(ledgers: Ledgers, needed_bytes: int, mine: object) -> None:
        make_room(ledgers, needed_bytes, mine)  # type: ignore[arg-type]
        if not needed_bytes:  # after a use
            totals.append(
                ledgers.memory_bytes
                + sum(kept.ledger.memory_bytes for kept in ledgers_of(logs)._kept.values())
            )

    monkeypatch.setattr(Ledgers, "_make_room", note)
    for name in ("t", "u", "v", "t"):
        logs.clean(name, due=True)
    assert max(totals) <= 1 << 20
    assert len(totals) == 6


def test_keeping_a_ledger_measures_no_other_one(opened: Open) -> None:
    measured = 0

    class Measured:
        entries: tuple[object, ...] = ()

        @property
        def memory_bytes(self) -> int:
            nonlocal measured
            measured += 1
            return 100

    kept = BucketLedgers(lambda: 100 * 250)
    for number in range(500):
        ledger = Measured()
        kept.make_room(100 * 250)
        kept.keep(TopicPartition("t", number), _Kept(ledger, ledger.memory_bytes, {}))  # type: ignore[arg-type]
    assert measured == 500
    assert kept.take(TopicPartition("t", 249)) is None
    assert kept.take(TopicPartition("t", 250)) is not None


def test_garbage_keeps_its_age_in_processes_that_save_no_index(opened: Open) -> None:
    clock = ManualClock(1_795_168_800_000)

    def run(records: list[tuple[bytes, bytes]]) -> int:
        """Append and clean what is due, as a process of its own."""
        logs = opened(clock=clock)
        if "t" not in logs:
            logs.create_topic("t", cleanup_policy="compact", max_compaction_lag_ms="1d")
        logs["t"].extend(records)
        rounds = logs.clean(due=True)
        logs.close()
        return len(rounds)

    assert run(PAIRS) == 0
    assert run(PAIRS[:10]) == 0  # the garbage is known now
    clock.sleep(15 * 3600)
    assert run(PAIRS[10:20]) == 0
    clock.sleep(10 * 3600)
    assert run([(b"new", b"")]) == 1  # 25 h after the first garbage
    logs = opened(clock=clock)
    assert not saved(logs)


def test_clocks_of_tombstones_go_on_in_processes_that_save_no_index(opened: Open) -> None:
    clock = ManualClock(1_795_168_800_000)

    def run(records: list[tuple[bytes, bytes | None]]) -> int:
        logs = opened(clock=clock)
        if "t" not in logs:
            logs.create_topic("t", cleanup_policy="compact", delete_retention_ms="1d")
        logs["t"].extend(records)
        logs.clean()
        count = logs["t"].describe()[0].tombstones
        logs.close()
        return count

    assert run(list(PAIRS)) == 0
    assert run([(b"k1", None)]) == 1
    clock.sleep(15 * 3600)
    assert run([(b"new", b"w")]) == 1
    clock.sleep(10 * 3600)
    assert run([(b"newer", b"w")]) == 0


def test_clocks_of_tombstones_are_saved_again_if_two_processes_saved_them_together(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What both wrote is removed when the two commits are merged."""
    clock = ManualClock(1_795_168_800_000)
    logs, other = opened(clock=clock), opened(clock=clock)
    topic = logs.create_topic("t", cleanup_policy="compact", delete_retention_ms="1d")
    topic.extend(PAIRS)
    logs.clean(due=True)
    other.clean(due=True)
    topic.append(b"no value before", None)
    topic.extend(PAIRS[5000:9000])
    bucket, upload = bucket_of(logs), bucket_of(logs).upload

    def after_the_other(changes: object) -> object:
        monkeypatch.setattr(bucket, "upload", upload)
        other.clean(due=True)
        assert saved(logs)
        return upload(changes)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket, "upload", after_the_other)
    logs.clean(due=True)
    assert not saved(logs)
    topic.extend([(b"new" + key, value) for key, value in PAIRS[:5000]])
    clock.sleep(15 * 3600)
    logs.clean(due=True)
    assert saved(logs)
    for process in (logs, other):
        process.close()
    clock.sleep(10 * 3600)
    last = opened(clock=clock)
    last.clean()
    assert last["t"].describe()[0].tombstones == 0


@pytest.mark.parametrize("seed", range(8))
def test_cleanings_of_two_processes_keep_the_newest_values(opened: Open, seed: int) -> None:
    rng = random.Random(seed)
    clock = ManualClock(1_795_168_800_000)
    both = [opened(clock=clock), opened(clock=clock)]
    both[0].create_topic(
        "t",
        cleanup_policy="compact",
        segment_bytes="32KiB",
        delete_retention_ms="1h",
        max_compaction_lag_ms="1h",
    )
    model: dict[bytes, bytes] = {}
    for _ in range(30):
        logs = rng.choice(both)
        what = rng.random()
        if what < 0.5:
            pairs = [
                (
                    b"k%d" % rng.randrange(80),
                    None if rng.random() < 0.2 else rng.randbytes(rng.choice([5, 900])),
                )
                for _ in range(rng.choice([1, 10, 60]))
            ]
            logs["t"].extend(pairs)
            for key, value in pairs:
                model.pop(key, None)
                if value is not None:
                    model[key] = value
        elif what < 0.9:
            logs.clean("t", due=rng.random() < 0.6)
        else:
            logs.clean("t", due=True)
            clock.sleep(rng.choice([60, 4000]))
            (plan,) = logs.plan("t", due=True)
            cleaned = rng.choice(both).clean("t", due=True)
            assert bool(cleaned) == (plan.action == "clean")
        found = {key: value for key, value in newest(rng.choice(both)).items() if value is not None}
        assert found == model
    both[0].clean("t")
    assert {k: v for k, v in newest(both[1]).items() if v is not None} == model
    assert both[1].verify().ok


def test_a_failed_transaction_keeps_no_ledger(opened: Open) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend(PAIRS)

    class Refused(LastwordError):
        pass

    def work(dirs: OpenDirs) -> None:
        cleaning.clean(dirs, "t", 0, due=True, strategy=None, progress=None, stop=None)
        raise Refused("no")

    with pytest.raises(Refused):
        logs.dirs.transaction(work)
    assert ledgers_of(logs).take(TP) is None


def test_a_description_reads_the_summary(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend(PAIRS)
    topic.extend([(key, b"w" * 100) for key, _ in PAIRS[:5000]])
    counted = topic.describe()[0]
    logs.clean(due=True)
    requests.clear()
    (described,) = opened("r")["t"].describe()
    assert requests["get_range"] <= 4  # the ends of two segments
    assert (described.garbage_bytes, described.records) == (counted.garbage_bytes, counted.records)
    assert described.exact


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_plan_of_what_became_due_needs_no_saved_index(opened: Open, mode: str) -> None:
    """The summary of the last cleaning shows that it is due, and the garbage index was not saved."""
    clock = ManualClock(1_795_168_800_000)
    logs = opened(clock=clock)
    topic = logs.create_topic("t", cleanup_policy="compact", max_compaction_lag_ms="1d")
    topic.extend(PAIRS)
    topic.extend(PAIRS[:5000])
    assert logs.clean(due=True) == []
    assert not saved(logs)
    clock.sleep(2 * 86_400)
    reader = opened(mode, clock=clock)
    (plan,) = reader.plan("t", due=True)
    assert plan.action == "clean"
    (cleaned,) = logs.clean(due=True)
    assert (cleaned.read_bytes, cleaned.written_bytes) == (plan.read_bytes, plan.write_bytes)
