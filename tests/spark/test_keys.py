"""Option `keys` with a saved key index: the same rows as without it, and fewer bytes."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import lastword
from lastword.files import OsFiles
from lastword.keys import index
from lastword.records.batch import BatchBuilder
from lastword.spark import read, splits
from lastword.spark.options import parse_read
from lastword.spark.schema import full_schema
from lastword.spark.source import LogReader
from lastword.testing.unsynced import UNSYNCED
from tests.bucket.test_keys import log_of, value_of
from tests.fakes.recording import RecordingFiles
from tests.spark.conftest import read_directly
from tests.transactions import end_transaction

NAMES = [b"k%d" % n for n in range(12)]
KEYS = json.dumps([name.decode() for name in NAMES[:5]] + ["absent", "k0"])


@pytest.fixture(autouse=True)
def _always_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "KEY_BYTES", 0)
    monkeypatch.setattr(index, "WORTH_SAVING", 1)


def scanned(root: Path | str, monkeypatch: pytest.MonkeyPatch, **options: str) -> list[dict[str, Any]]:
    with monkeypatch.context() as patch:
        patch.setattr(splits, "look_up", lambda view, keys: None)
        return read_directly(root, **options)


def tasks_of(root: Path | str, **options: str) -> list[splits.LogPartition]:
    given = parse_read({"path": str(root), "subscribe": "t", **{k.lower(): v for k, v in options.items()}})
    return [
        part for task in LogReader(given, full_schema(False)).partitions() for part in splits.parts_of(task)
    ]


def change(logs: lastword.LogDir, rng: random.Random, step: int) -> None:
    topic = logs["t"]
    if rng.random() < 0.2:
        log = logs.dirs.log("t", 0)
        builder = BatchBuilder(producer_id=step, producer_epoch=0, base_sequence=0, transactional=True)
        for _ in range(3):
            builder.append(1_700_000_000_000, rng.choice(NAMES), rng.choice((None, b"t%d" % step)))
        log.append_batch(builder.build(0))
        end_transaction(log, step, 0, commit=rng.random() < 0.5)
    else:
        rows = [(rng.choice(NAMES), None if rng.random() < 0.2 else b"%d" % step) for _ in range(5)]
        topic.extend(rows, partition=rng.randrange(2))
        topic.append(rng.choice(NAMES), b"%d" % step, headers={"h": b"%d" % step, "é": None}, partition=0)
    if rng.random() < 0.1:
        logs.clean("t")


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_those_of_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random logs whose index ends at the log end, below it, in a batch that was joined, or nowhere."""
    rng = random.Random(seed)
    settings: dict[str, Any] = {"segment_bytes": 600, "delete_retention_ms": 0, "files": UNSYNCED}
    used = 0
    with lastword.open(tmp_path, "a", log_cleaner_enable=False, **settings) as logs:
        logs.create_topic(
            "t",
            partitions=2,
            cleanup_policy="compact",
            compression_type=rng.choice(("uncompressed", "gzip")),
            message_timestamp_type=rng.choice(("CreateTime", "LogAppendTime")),
        )
    for step in range(0, 80, 20):
        with lastword.open(tmp_path, "a", log_cleaner_enable=False, **settings) as logs:
            for number in range(step, step + 20):
                change(logs, rng, number + 1)
            if rng.random() < 0.6:
                logs["t"].get_many(NAMES)
            if rng.random() < 0.3:
                logs.clean("t")
        end = logs_end(tmp_path)
        late = json.dumps({"t": {str(n): max(end[n] - rng.randrange(12), 0) for n in end}})
        for options in (
            {},
            {"endingOffsets": late},
            {"startingOffsets": json.dumps({"t": {"0": end[0] // 2, "1": end[1] // 2}})},
        ):
            given = {"view": "newest", "keys": KEYS, "includeHeaders": "true", **options}
            try:
                expected = scanned(tmp_path, monkeypatch, **given)
            except lastword.errors.OffsetOutOfRangeError:
                continue  # a past that was cleaned
            assert read_directly(tmp_path, **given) == expected
            used += sum(task.found is not None for task in tasks_of(tmp_path, **given))
        for view in ("changes", "log"):
            given = {"view": view, "keys": KEYS}
            assert all(task.found is None for task in tasks_of(tmp_path, **given))
        assert all(
            task.found is None
            for task in tasks_of(tmp_path, view="newest", keys=KEYS, isolationLevel="read_uncommitted")
        )
    assert used > 4


def logs_end(root: Path) -> dict[int, int]:
    with lastword.open(root) as logs:
        return {number: end for number, (_, end) in logs["t"].bounds().items()}


def large(root: Path, records: int = 20_000) -> None:
    with lastword.open(root, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=200_000)
        for first in range(0, records, 50):
            last = min(first + 50, records)
            topic.extend([(b"key-%d" % n, b"value-%d" % n) for n in range(first, last)])
        topic.delete(b"key-5")
        topic.append(b"end", b"")
        topic.get(b"key-1")


def test_a_task_reads_the_batches_of_the_keys_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(tmp_path)
    keys = json.dumps(["key-77", "key-9000", "key-19999", "key-5", "absent"])

    def read_bytes(task: splits.LogPartition) -> tuple[list[int], int]:
        given = parse_read({"path": str(tmp_path), "subscribe": "t", "view": "newest", "keys": keys})
        reader = LogReader(given, full_schema(False))
        files = RecordingFiles(OsFiles())
        batches = read.read_task(task, reader.options, reader.schema, reader.columns, files)
        offsets = [offset for batch in batches for offset in batch["offset"].to_pylist()]
        reads = [call for call in files.calls if call.name.startswith("pread") and call.path.endswith(".log")]
        return offsets, sum(call.detail[0] for call in reads)

    (task,) = tasks_of(tmp_path, view="newest", keys=keys)
    assert task.found == ((77, b"key-77"), (9000, b"key-9000"), (19999, b"key-19999"))
    assert task.indexed_to == task.end == 20_002
    assert pickle.loads(pickle.dumps(task)) == task
    offsets, indexed = read_bytes(task)
    monkeypatch.setattr(splits, "look_up", lambda view, keys: None)
    (task,) = tasks_of(tmp_path, view="newest", keys=keys)
    expected, scanned = read_bytes(task)
    assert offsets == expected == [77, 9000, 19999]
    assert indexed * 10 < scanned, (indexed, scanned)


def test_keys_that_are_many_for_a_small_log_are_scanned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(tmp_path, 2000)
    monkeypatch.undo()
    few, many = json.dumps(["key-1"]), json.dumps([f"key-{n}" for n in range(50)])
    for keys, is_used in ((few, True), (many, False)):
        (task,) = tasks_of(tmp_path, view="newest", keys=keys)
        assert (task.found is not None) is is_used


@pytest.mark.parametrize("wrong", ["another key", "no record", "a run is gone", "damage", "cut"])
def test_an_index_that_is_wrong_changes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    large(tmp_path, 1998)
    keys = json.dumps(["key-77", "key-1950"])
    private = tmp_path / "t-0" / "lastword"
    saved = {path: path.read_bytes() for path in private.glob("keys*")}
    if wrong == "another key":
        monkeypatch.setattr(splits, "look_up", lambda view, keys: (2000, {78: b"key-77", 1950: b"key-1950"}))
    elif wrong == "no record":
        monkeypatch.setattr(splits, "look_up", lambda view, keys: (1990, {1995: b"key-77"}))
    elif wrong == "a run is gone":
        next(private.glob("keys-*")).unlink()
    elif wrong == "damage":
        path = next(private.glob("keys-*"))
        path.write_bytes(bytes(len(path.read_bytes())))
    else:
        with lastword.open(tmp_path, "a", files=UNSYNCED) as logs:
            logs.dirs.log_dir("t", 0).truncate("t", 0, 1950)
            logs["t"].extend([(b"key-77", b"newer"), *[(b"fill", b"")] * 80])
        for path, data in saved.items():  # from a backup: it ends below the log end, and is of another log
            path.write_bytes(data)
        keys = json.dumps(["key-77"])
    rows = read_directly(tmp_path, view="newest", keys=keys)
    expected = scanned(tmp_path, monkeypatch, view="newest", keys=keys)
    assert rows == expected
    assert [row["offset"] for row in rows] == ([1950] if wrong == "cut" else [77, 1950])


def test_a_cleaning_between_the_plan_and_a_task(tmp_path: Path) -> None:
    """It removes a record that the index names, for a newer one above the index."""
    large(tmp_path, 2000)
    with lastword.open(tmp_path, "a", files=UNSYNCED, lastword_key_index=False) as logs:
        logs["t"].append(b"key-77", b"newer")
        logs["t"].extend([(b"fill", b"x" * 1000)] * 400)
    options = {"path": str(tmp_path), "subscribe": "t", "view": "newest", "keys": '["key-77", "key-78"]'}
    reader = LogReader(parse_read(options), full_schema(False))
    (task,) = reader.partitions()
    assert isinstance(task, splits.LogPartition) and task.indexed_to == 2002
    assert task.found == ((77, b"key-77"), (78, b"key-78"))
    with lastword.open(tmp_path, "a", files=UNSYNCED) as logs:
        logs.clean("t")
        assert logs["t"].record_at(77) is None
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in rows] == [(78, b"value-78"), (2002, b"newer")]


@pytest.mark.parametrize("held_bytes", [0, read.HELD_BYTES])
def test_a_log_in_a_bucket(monkeypatch: pytest.MonkeyPatch, requests: Counter[str], held_bytes: int) -> None:
    """A plan requests a block of the index for each key; a task the batches, and the offset index once."""
    monkeypatch.setattr(read, "HELD_BYTES", held_bytes)
    url = f"memory://spark-keys-{held_bytes}/log"
    with lastword.open(url, "a", lastword_commit_linger_ms=0, log_cleaner_enable=False) as logs:
        log_of(logs)
        given = {"view": "newest", "keys": '["k00000777", "k00002777"]'}
        tasks_of(url, **given)  # the first one also finds the store
        requests.clear()
        (task,) = tasks_of(url, **given)
        assert task.found == ((4777, b"k00000777"), (6777, b"k00002777"))
        blocks = requests["get_range"]  # two keys may be in one, and an entry in the next one
        assert blocks <= 4 and requests.total() == blocks + 1, "the manifest"
        requests.clear()
        assert [row["value"] for row in read_directly(url, **given)] == [value_of(777), value_of(2777)]
        assert requests["get_range"] == blocks + (3 if held_bytes else 5)

        logs["t"].extend([(b"k00000777", b"new"), (b"k00000778", None), (b"above", b"")])
        logs.clean("t")
        logs["t"].append(b"k00000779", b"above")
    many = json.dumps([f"k{number:08}" for number in range(775, 800)])
    for keys in ('["k00000777", "absent"]', '["k00000778"]', '["k00000779"]', '["above"]', many):
        given = {"view": "newest", "keys": keys}
        (task,) = tasks_of(url, **given)
        assert (task.found is None) is (keys == many)
        assert read_directly(url, **given) == scanned(url, monkeypatch, **given)
