"""Erasure in a bucket: no object of the store and no private copy holds a key or an old value afterwards."""

from __future__ import annotations

import base64
import json
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api.open_dirs import OpenDirs
from lastword.clock import ManualClock, SystemClock
from tests.api.test_erase import left_in
from tests.fakes.objects import Bucket, Fault, Planned, Request, Stopped
from tests.support.exhaustive import stride

KEY, VALUE = b"the key of someone", b"an old value of someone"


def strings_in(value: Any) -> Iterator[bytes]:
    """Yield every text in a JSON value as bytes, and what it stands for if it is Base64 or JSON."""
    for part in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        for text in part:
            yield from strings_in(text)
    if isinstance(value, str):
        yield value.encode()
        with suppress(ValueError):
            yield base64.b64decode(value, validate=True)
        if value.startswith(("{", "[")):
            yield from strings_in(json.loads(value))


def objects_with(logs: lastword.LogDir, wanted: list[bytes], path: Path) -> set[str]:
    """Return the objects of the store that hold one of these byte strings; `path`: a directory for copies.

    The manifest and its pages are compressed, and hold small files as Base64 in JSON.
    """
    store, found = logs.dirs._bucket.store, set()  # type: ignore[attr-defined]
    for facts in store.list(""):
        data = bytes(store.get(facts.key).data)
        (path / "object.log").write_bytes(data)
        parts = [data]
        with suppress(zlib.error):
            parts += strings_in(json.loads(zlib.decompress(data).split(b"\n", 1)[-1]))
        if left_in(path, wanted) or any(each in part for part in parts for each in wanted):
            found.add(facts.key)
    return found


def fill(logs: lastword.LogDir, partitions: int, value_bytes: int, rounds: int = 3) -> lastword.Topic:
    """Make commits with records of the key and of others, in several segments or partitions."""
    rng = random.Random(3)
    topic = logs.create_topic("users", partitions=partitions, cleanup_policy="compact", segment_bytes=100_000)
    for number in range(rounds):
        others = [(b"other %d" % other, rng.randbytes(value_bytes)) for other in range(40)]
        topic.extend([(KEY, VALUE + b" %d" % number), *others])
    return topic


def opened_double(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, bucket: Bucket, name: str = "process"
) -> lastword.LogDir:
    """Open the log in the double as a process of this name."""
    monkeypatch.setattr(lastword.objects, "open_store", lambda *_: bucket.process(name))
    return lastword.open(
        "s3://double", "a", clock=clock, lastword_commit_linger_ms=0, log_cleaner_enable=False
    )


def records_of(topic: lastword.Topic) -> list[tuple[Any, ...]]:
    """Return the records of other keys."""
    return sorted((r.partition, r.offset, r.key, r.value) for r in topic.read() if r.key != KEY)


@pytest.mark.parametrize(
    ("partitions", "value_bytes"),
    [(1, 4000), (3, 4000), (60, 20)],
    ids=["segments of a commit", "partitions of a commit", "small files in a page of the manifest"],
)
@pytest.mark.parametrize("now", [True, False])
def test_no_object_keeps_the_bytes_beside_other_files(
    opened: Callable[..., lastword.LogDir],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    value_bytes: int,
    now: bool,
) -> None:
    scratch, copies = tmp_path / "scratch", tmp_path / "objects"
    scratch.mkdir()
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    logs = opened()
    topic = fill(logs, partitions, value_bytes)
    before = records_of(topic)
    assert objects_with(logs, [KEY, VALUE], copies)
    done = topic.erase([KEY], now=now)
    assert done.complete is now is (done.waiting_objects == 0)
    if not now:
        assert done.waiting_until_ms > done.ended_ms
        assert objects_with(logs, [VALUE], copies)
        logs.collect(retention=0)
        assert topic.erase([KEY], now=True).complete
    assert objects_with(logs, [KEY, VALUE], copies) == set()
    assert records_of(topic) == before
    assert logs.verify().ok
    logs.close()
    assert left_in(scratch, [KEY, VALUE]) == set()


@pytest.mark.parametrize("kind", ["a pin", "an upload"])
def test_objects_that_a_pin_or_an_upload_keeps_are_counted(
    opened: Callable[..., lastword.LogDir], tmp_path: Path, kind: str
) -> None:
    logs = opened()
    bucket = logs.dirs._bucket  # type: ignore[attr-defined]
    if kind == "an upload":
        bucket.begin_uploads("job", 3_600_000)
    topic = fill(logs, 3, 4000)
    pin = bucket.pin(3_600_000) if kind == "a pin" else ""
    done = topic.erase([KEY], now=True)
    assert done.waiting_objects and done.waiting_until_ms > 0 and not done.complete
    assert objects_with(logs, [KEY, VALUE], tmp_path)
    bucket.unpin(pin) if pin else bucket.end_uploads("job")
    assert topic.erase([KEY], now=True).complete
    assert objects_with(logs, [KEY, VALUE], tmp_path) == set()


def test_a_stop_at_every_request_and_a_repeated_call_end_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    opened = partial(opened_double, monkeypatch, clock)
    first = Bucket(clock=ManualClock(clock.now_ms()))
    with opened(first) as logs:
        before = records_of(fill(logs, 3, 4000))
    number, step, ended = 1, stride(5), False
    while not ended:
        bucket = Bucket(clock=ManualClock(clock.now_ms()))
        bucket.objects, bucket._writes = dict(first.objects), first._writes
        try:
            logs = opened(bucket)
            store = logs.dirs._bucket.store  # type: ignore[attr-defined]
            store.faults = Planned({store.number + number: Fault.STOP_BEFORE})
            logs.topic("users").erase([KEY], now=True)
            ended = True
        except Stopped:
            store.stopped, store.faults = False, None
            logs.dirs.closed = True
        with opened(bucket) as again:
            topic = again.topic("users")
            assert records_of(topic) == before
            assert topic.erase([KEY], now=True).complete
            assert objects_with(again, [KEY, VALUE], tmp_path) == set()
            assert records_of(topic) == before
            assert again.verify().ok
        number += step
    assert number > 25


@pytest.mark.parametrize("written", [b"busy", KEY])
@pytest.mark.parametrize("now", [True, False])
def test_an_erasure_ends_beside_a_writer_that_commits_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, written: bytes
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    bucket = Bucket(clock=clock)

    opened = partial(opened_double, monkeypatch, clock, bucket)
    with opened("writer") as writer, opened("eraser") as eraser:
        writing = fill(writer, 1, 4000)
        others = records_of(writing)
        store = eraser.dirs._bucket.store  # type: ignore[attr-defined]

        def write(request: Request) -> None:
            clock.advance(30)
            if request.number % 9 == 0:  # an append to one partition needs 8 requests
                writing.append(written, b"%d" % request.number)

        began = len(bucket.log)
        store.before = write
        done = eraser.topic("users").erase([KEY], now=now)
        store.before = None
        swaps = [each for each in bucket.log[began:] if each.process == "eraser" and each.kind == "swap"]
        assert len(swaps) < 30
        [part] = done.partitions
        assert (part.copies_found, done.complete) == (0, now)
        assert objects_with(eraser, [VALUE], tmp_path) == set() or not now
        assert [record for record in records_of(writing) if record[2] != b"busy"] == others
        done.save(tmp_path / "certificate.json")
        check = eraser.topic("users").check_erasure(tmp_path / "certificate.json")
        assert (bool(check.came_back), check.left) == (written == KEY, ())
        if written != KEY:
            assert (part.records, len(part.ranges)) == (3, 3 + now)
            assert objects_with(eraser, [KEY], tmp_path) == set() or not now


def test_planted_copies_are_found(opened: Callable[..., lastword.LogDir], tmp_path: Path) -> None:
    logs = opened()
    topic = fill(logs, 1, 4000)
    logs.dirs.refresh()
    view = logs.dirs.view("users", 0)
    segment = next(each for each in view.segments if each.size)
    data = view.files.read_bytes(segment.file)
    copies = {
        "users-0/00000000000000000777.snapshot": b"\0" * 9 + KEY,
        "users-0/lastword/copy/00000000000000000000.log": data,
        "users-0/lastword/sharded-1/unit-1.data": b"x" * 5 + VALUE + b" 0y",
        "users-0.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log": data,
    }

    def plant(dirs: OpenDirs) -> None:
        for name, content in copies.items():
            path = f"{dirs.paths[0]}/{name}"
            with suppress(FileExistsError):
                dirs.files.mkdir(path.rpartition("/")[0])
            dirs.files.write_atomic(path, content)

    logs.dirs.transaction(plant)
    done = topic.erase([KEY], now=True)
    assert not done.complete
    found = {copy.file for copy in done.partitions[0].copies}
    assert found == {name for name in copies if "/lastword/" in name}  # opening to change removes the others
    assert objects_with(logs, [KEY, VALUE], tmp_path)
    logs.dirs.transaction(lambda dirs: [dirs.files.unlink(f"{dirs.paths[0]}/{name}") for name in found])
    done = topic.erase([KEY], now=True)
    assert done.complete
    assert objects_with(logs, [KEY, VALUE], tmp_path) == set()
    done.save(tmp_path / "certificate.json")
    checked = topic.check_erasure(tmp_path / "certificate.json")
    assert (checked.came_back, checked.left, checked.changed_segments) == ((), (), 0)
