"""The local cache of ranges: damage, limits, several processes, and the requests that it saves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import InvalidSettingError
from lastword.objects import open_store
from lastword.objects.cached import LEAST_BYTES, CachedRanges
from lastword.objects.remote import RemoteStore
from tests.support.stores import Server


def test_a_range_is_kept_until_its_file_is_removed_or_damaged(tmp_path: Path) -> None:
    cache = CachedRanges(str(tmp_path / "cache"))
    cache.keep("a 0 5", b"12345")
    cache.keep("b 0 5", b"67890")
    again = CachedRanges(str(tmp_path / "cache"))
    assert again.get("a 0 5", 5) == b"12345" and again.get("b 0 5", 5) == b"67890"
    assert again.get("a 0 4", 4) is None and again.get("a 0 5", 4) is None
    first, second = sorted(tmp_path.glob("cache/*"))
    content = first.read_bytes()
    for position in range(len(content)):
        first.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert sum(again.get(name, 5) is None for name in ("a 0 5", "b 0 5")) == 1
        first.write_bytes(content[:position])
        assert sum(again.get(name, 5) is None for name in ("a 0 5", "b 0 5")) == 1
    first.write_bytes(second.read_bytes())  # the range of another name
    assert sum(again.get(name, 5) is None for name in ("a 0 5", "b 0 5")) == 1
    shutil.rmtree(tmp_path / "cache")
    assert again.get("a 0 5", 5) is None
    again.keep("a 0 5", b"12345")  # the drive refuses
    (tmp_path / "cache").touch()
    again.keep("a 0 5", b"12345")  # and refuses to remove the new file
    assert again.get("a 0 5", 5) is None
    (tmp_path / "cache").unlink()
    assert again.get("a 0 5", 5) is None


def test_the_directory_is_bounded_and_the_range_that_was_used_last_stays(tmp_path: Path) -> None:
    caches = [CachedRanges(str(tmp_path), LEAST_BYTES) for _ in range(2)]
    left = tmp_path / f"{'0' * 32}.1-1"  # by a process that was killed
    left.write_bytes(bytes(1 << 20))
    os.utime(left, (1, 1))
    data = bytes(512 << 10)
    for number in range(100):
        caches[number % 2].keep(f"{number}", data)
        assert caches[number % 2].get("0", len(data)) == data
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert size <= LEAST_BYTES * 9 / 8 + len(data) + 4
    assert size > LEAST_BYTES / 2 and caches[0].get("1", len(data)) is None
    assert not list(tmp_path.glob("*.*"))


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * LEAST_BYTES)
    cache = CachedRanges(str(tmp_path), LEAST_BYTES)
    for number in range(40):
        cache.keep(str(number), b"y" * 500_000)
    assert (tmp_path / "notes.txt").exists()
    assert len(list(tmp_path.iterdir())) < 40


def test_threads_and_processes_share_a_directory(tmp_path: Path) -> None:
    def use(number: int) -> None:
        cache = CachedRanges(str(tmp_path), LEAST_BYTES)
        for turn in range(40):
            name = f"{(turn * 7 + number) % 50}"
            kept = cache.get(name, 400_000)
            assert kept is None or kept == name.encode() * (400_000 // len(name))
            cache.keep(name, name.encode() * (400_000 // len(name)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert not list(tmp_path.glob("*.*"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return the number of requests that read since the last call."""
    sent: list[str] = []
    call = RemoteStore._call

    def counting(self: Any, verb: str, *arguments: Any, **options: Any) -> Any:
        sent.append(verb)
        return call(self, verb, *arguments, **options)

    def count() -> int:
        number = sent.count("read")
        sent.clear()
        return number

    monkeypatch.setattr(RemoteStore, "_call", counting)
    return count


@pytest.mark.slow
def test_the_second_process_sends_fewer_requests(
    gcs: Server, tmp_path: Path, reads: Callable[[], int]
) -> None:
    url, options = f"{gcs.root}/cached/log", gcs.options | {"cache": str(tmp_path / "cache")}
    with lastword.open(url, "a", storage_options=gcs.options, log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", 4, cleanup_policy="compact", key_serializer="str")
        for _ in range(3):
            topic.extend((f"k{number}", b"%d" % number) for number in range(2000))
        logs.clean("t")
        topic.extend((f"k{number}", b"%d" % -number) for number in range(2000))
        topic.append("k1", b"last")

    def newest(options: dict[str, str] = options) -> dict[str, bytes]:
        with lastword.open(url, storage_options=options) as logs:
            return {record.key: record.value for record in logs["t"].read(view="newest")}

    reads()
    assert newest() == newest(gcs.options)
    reads()
    first = newest(gcs.options)
    without = reads()
    assert newest() == first and first["k1"] == b"last" and len(first) == 2000
    assert reads() == 4 and without > 10
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert newest() == first and reads() > 4
    assert newest() == first and reads() == 4
    with lastword.open(url, "a", storage_options=options, log_cleaner_enable=False) as logs:
        logs["t"].append("k1", b"newer")
        assert dict(logs.state("t", value_serializer="bytes"))["k1"] == b"newer"


@pytest.mark.parametrize(
    "options",
    [
        {"cache_bytes": "1GiB"},
        {"cache": "kept", "cache_bytes": "15MiB"},
        {"cache": "kept", "cache_bytes": "much"},
        {"cache": "file"},
    ],
)
def test_options_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(InvalidSettingError, match="storage option cache"):
        open_store("s3://bucket/log", options)
