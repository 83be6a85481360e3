"""Lookups of keys in a bucket: a saved index and one in memory, the answers of a scan, and few requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import MANIFEST, Entry
from lastword.keys import index
from lastword.keys import manifest as saved
from lastword.keys.index import KeyIndex
from lastword.objects.cached import CachedRanges
from lastword.objects.remote import RemoteStore
from lastword.partition import scan
from lastword.segment import names
from tests.bucket.test_log import bucket_of

Open = Callable[..., lastword.LogDir]
NAMES = [b"k%d" % n for n in range(10)]


def of_scan(topic: lastword.Topic, keys: list[bytes]) -> dict[bytes, Any]:
    return {record.key: record for record in topic.newest(keys)}


@pytest.fixture
def always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cleaning makes an index, whatever it costs."""
    monkeypatch.setattr(KeyIndex, "pays", lambda index, view, keys: view.log_end > index.end)


def entries_of(logs: lastword.LogDir) -> dict[str, Entry | None]:
    """Return the files of the saved index."""
    private = bucket_of(logs).load().snapshot.children("t-0/lastword")
    return {name: entry for name, entry in private.items() if name.startswith(names.KEYS)}


@pytest.mark.usefixtures("always_saved")
@pytest.mark.parametrize("seed", range(2))
def test_the_answers_are_those_of_a_scan(opened: Open, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Two processes commit; the log is cleaned, trimmed, cut and made again, and old objects are removed.

    Some of the processes that look up keys are new ones.
    """
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 5)
    used: list[int] = []
    real = saved.open_runs
    monkeypatch.setattr(saved, "open_runs", lambda *given: used.append(given[2].end) or real(*given))
    rng = random.Random(seed)
    settings = {"cleanup_policy": "compact", "delete_retention_ms": 0, "partitions": 2}
    writers = [opened(), opened()]
    writers[0].create_topic("t", **settings)
    looking = [opened("r"), writers[1]]
    for step in range(60):
        logs = rng.choice(writers)
        match rng.randrange(14):
            case 0 | 1:
                logs.clean("t", strategy=rng.choice(["kafka", "generational"]))
            case 2:
                logs.collect(retention=0)
            case 3:
                number, (start, end) = rng.choice([*logs["t"].bounds().items()])
                offset = rng.randrange(start, end + 1)
                logs.dirs.transaction(
                    lambda dirs, n=number, o=offset: dirs.log_dir("t", n).truncate("t", n, o)
                )
            case 4:
                for number, (start, end) in logs["t"].bounds().items():
                    logs["t"].trim(rng.randrange(start, end + 1), partition=number)
            case 5 if rng.random() < 0.3:
                logs.delete_topic("t")
                logs.create_topic("t", **settings)
            case _:
                rows = [(rng.choice(NAMES), None if rng.random() < 0.3 else b"%d" % step) for _ in range(4)]
                logs["t"].extend(rows)
        topic = (opened("r") if rng.random() < 0.3 else rng.choice(looking))["t"]
        key, keys = rng.choice(NAMES), rng.sample(NAMES, 3)
        expected = of_scan(topic, NAMES)
        assert topic.get_record(key) == expected.get(key)
        assert topic.get_records(keys) == {key: expected[key] for key in keys if key in expected}
    assert len(used) > 5
    assert writers[0].verify().ok


def filled(logs: lastword.LogDir, count: int = 10_000) -> lastword.Topic:
    topic = logs.create_topic("t", cleanup_policy="compact")
    for first in range(0, count, count // 4):
        topic.extend([(b"k%d" % n, b"v%d" % n * 100) for n in range(first, first + count // 4)])
    return topic


def test_a_lookup_after_the_first_takes_few_requests(opened: Open, requests: Counter[str]) -> None:
    writer = opened()
    filled(writer)
    topic = opened("r")["t"]
    _, first = counted(requests, lambda: topic.get(b"k1"))
    for key, expected in ((b"k1", b"v1" * 100), (b"k5000", b"v5000" * 100), (b"absent", None)):
        value, sent = counted(requests, lambda key=key: topic.get(key))
        assert value == expected
        assert sum(sent.values()) <= 4 < sum(first.values()), (key, sent, first)
    writer["t"].append(b"k1", b"new")  # in the manifest
    assert counted(requests, lambda: topic.get(b"k1")) == (b"new", {"get": 1})
    assert counted(requests, lambda: topic.get(b"absent")) == (None, {"get": 1})


def test_many_keys_are_scanned_for(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(opened())
    topic.get(b"k1")
    used: list[int] = []
    real = KeyIndex.find
    monkeypatch.setattr(
        KeyIndex, "find", lambda self, log, keys: used.append(len(keys)) or real(self, log, keys)
    )
    assert len(topic.get_many([b"k%d" % n for n in range(3)])) == 3 and used == [3]
    assert len(topic.get_many([b"k%d" % n for n in range(50)])) == 50 and used == [3]


def test_keys_that_do_not_fit_the_memory_are_scanned_for_with_a_warning(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    filled(opened())
    logs = opened("r", log_cleaner_dedupe_buffer_size=1 << 16, log_cleaner_threads=1)
    assert logs["t"].get(b"k1") == b"v1" * 100
    (record,) = caplog.records
    assert "do not fit" in record.getMessage() and "mode" not in record.getMessage()


# ---------------------------------------------------------------- the saved index


ROWS = 4000


def value_of(number: int) -> bytes:
    return b"%06d" % number * 300


def log_of(logs: lastword.LogDir) -> None:
    """Write and clean a log of 7 MB, whose offset index is in an object, and whose key index pays."""
    topic = logs.create_topic("t", cleanup_policy="compact")
    for value in (b"old", None):
        topic.extend([(b"k%08d" % n, value or value_of(n)) for n in range(ROWS)])
    logs.clean("t")


def counted(requests: Counter[str], call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    requests.clear()
    return call(), dict(requests)


def test_a_lookup_of_a_new_process_takes_three_requests(opened: Open, requests: Counter[str]) -> None:
    """The manifest of the log, which is unchanged; a block of the index; the batch."""
    log_of(opened())
    for key in (b"k%08d" % n for n in (0, 1, 777, ROWS - 1)):
        topic = opened("r").topic("t")
        value, sent = counted(requests, lambda topic=topic, key=key: topic.get(key))
        assert value == value_of(int(key[1:]))
        assert sent == {"get": 1, "get_range": 2}
    topic = opened("r").topic("t")
    assert counted(requests, lambda: topic.get(b"absent")) == (None, {"get": 1, "get_range": 1})


def test_a_lookup_of_a_new_process_takes_none_with_the_local_cache(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of the log's manifest alone is compared with the store's."""
    log_of(opened())
    sent: list[str] = []
    call = RemoteStore._call
    monkeypatch.setattr(
        RemoteStore, "_call", lambda *given, **more: sent.append(given[2]) or call(*given, **more)
    )
    for others in (2, 0):
        logs = opened("r")
        logs.dirs._bucket.store._cache = CachedRanges(str(tmp_path))  # type: ignore[attr-defined]
        topic = logs.topic("t")
        sent.clear()
        assert topic.get(b"k00000777") == value_of(777)
        assert sent.pop(0) == MANIFEST and len(sent) == others


def test_what_is_above_the_index_is_read_and_is_newer(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    log_of(logs)
    logs["t"].extend(
        [(b"k00000001", b"new"), (b"k00000002", None)] + [(b"n%d" % n, b"x" * 9000) for n in range(3)]
    )
    for key, value in (
        (b"k00000001", b"new"),
        (b"k00000002", None),
        (b"k00000003", value_of(3)),
        (b"n2", b"x" * 9000),
    ):
        topic = opened("r").topic("t")
        found, sent = counted(requests, lambda topic=topic, key=key: topic.get(key))
        assert found == value
        assert sent["get_range"] <= 4, (key, sent)


def test_an_index_is_written_where_it_pays(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")

    def cleaned(keys: int, size: int) -> dict[str, Entry | None]:
        topic.extend([(b"k%d" % n, bytes(size)) for n in range(keys)])
        requests.clear()
        logs.clean("t", due=True)
        return entries_of(logs)

    assert not cleaned(10_000, 100), "a scan takes two requests"
    first = cleaned(10_000, 700)
    assert len(first) == 2 and sum(entry.size for entry in first.values() if entry) < 32 * 10_000
    assert cleaned(1000, 100) == first and requests["get_range"] <= 3
    second = cleaned(10_000, 700)
    assert len(second) == 2 and second.keys() != first.keys()
    logs.set_config("t", lastword_key_index=False)
    assert not cleaned(1000, 100), "the next cleaning removes it"


def test_an_index_of_very_small_records_is_not_written(opened: Open) -> None:
    logs = opened()
    logs.create_topic("t", cleanup_policy="compact").extend([(b"%d" % n, b"") for n in range(100_000)])
    logs.clean("t")
    assert not entries_of(logs)


def test_a_cleaning_keeps_the_index_that_it_does_not_grow(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces the segment of the witness, and with it the positions."""
    logs = opened()
    log_of(logs)
    before = entries_of(logs)
    logs["t"].extend([(b"k%08d" % n, b"new") for n in range(10)])
    monkeypatch.setattr(KeyIndex, "pays", lambda *_: False)
    logs.clean("t")
    after = entries_of(logs)
    assert after.keys() == before.keys() and after[names.KEYS] != before[names.KEYS]
    starts: list[int] = []
    real = scan.records
    monkeypatch.setattr(
        scan, "records", lambda view, start, *a, **o: starts.append(start) or real(view, start, *a, **o)
    )
    topic = opened("r").topic("t")
    assert topic.get(b"k00000005") == b"new" and topic.get(b"k00000777") == value_of(777)
    assert starts[0] == 2 * ROWS, "from the end of the index on"


def test_a_short_commit_leaves_the_index(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    log_of(logs)
    logs["t"].append(b"a", b"")
    _, sent = counted(requests, lambda: logs["t"].append(b"a", b"b"))
    assert sent == {"get": 1, "swap": 1} and len(entries_of(logs)) == 2


def test_a_topic_without_an_id_has_no_index(opened: Open) -> None:
    logs = opened()
    logs.create_topic("t", cleanup_policy="compact")
    bucket_of(logs).transaction(lambda files: files.unlink(f"{files.root}/t-0/partition.metadata"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyIndex, "pays", lambda *_: True)
        logs["t"].extend([(b"k", b"v"), (b"k", b"w")])
        logs.clean("t")
    assert names.KEYS not in entries_of(logs)


def test_a_damaged_index_is_reported_and_not_used(
    url: str, opened: Open, requests: Counter[str], tmp_path: Path
) -> None:
    logs = opened()
    log_of(logs)
    assert logs.verify().ok
    lastword.copy(url, tmp_path / "copy")
    assert not [*(tmp_path / "copy" / "t-0" / "lastword").glob("keys*")]

    def damage(files: BucketFiles) -> None:
        (run,) = (n for n in files.listdir(f"{files.root}/t-0/lastword") if n.startswith(names.KEY_RUN))
        with files.open_append(f"{files.root}/t-0/lastword/{run}") as handle:
            for position in range(100, handle.size() - 4096, 4096):
                handle.pwrite(b"damage", position)

    bucket_of(logs).transaction(damage)
    assert opened("r")["t"].get(b"k00000777") == value_of(777)
    (problem,) = logs.verify().problems
    assert problem.code == "bad-key-index"
