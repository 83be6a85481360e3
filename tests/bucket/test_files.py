"""`BucketFiles` against a directory: the same calls, the same files."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword.bucket import scratch
from lastword.bucket.commit import Bucket
from lastword.bucket.files import BucketFiles
from lastword.clock import ManualClock
from lastword.errors import FileTakenError, FileVanishedError, LastwordError, NotPermittedError
from lastword.files import DEFAULT, Files
from lastword.objects import open_store
from tests.support.exhaustive import few

NAMES = ("a", "b", "dir", "dir/a", "dir/b", "dir/deep", "dir/deep/a")
CALLS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 3000)),
    st.tuples(st.just("append"), st.sampled_from(NAMES), st.integers(1, 1500)),
    st.tuples(st.just("patch"), st.sampled_from(NAMES), st.integers(0, 2900)),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(0, 3000)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("unlink"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("mkdir"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("rmdir"), st.sampled_from(NAMES), st.just(0)),
)


def call(files: Files, root: str, step: tuple) -> None:
    verb, name, given = step
    path = f"{root}/{name}"
    if verb == "write":
        files.write_atomic(path, random.Random(given).randbytes(given))
    elif verb == "append":
        with files.open_append(path) as handle:
            handle.append(random.Random(given).randbytes(given))
    elif verb == "patch":
        with files.open_append(path) as handle:
            if handle.size() > given:
                handle.pwrite(b"patched!"[: handle.size() - given], given)
    elif verb == "rename":
        if files.is_dir(path) or files.is_dir(f"{root}/{given}"):
            return  # a directory is renamed in one case only: to a new name
        files.rename(path, f"{root}/{given}")
    elif verb == "truncate":
        files.truncate(path, min(given, files.stat(path).size if files.exists(path) else 0))
    else:
        getattr(files, verb)(path)


def tree(files: Files, root: str, directory: str = "") -> dict[str, bytes | None]:
    """Return the bytes of each file by path; None for a directory."""
    found: dict[str, bytes | None] = {}
    for name in files.listdir(os.path.join(root, directory) if directory else root):
        path = f"{directory}/{name}" if directory else name
        if files.is_dir(f"{root}/{path}"):
            found[path] = None
            found |= tree(files, root, path)
        else:
            data = files.read_bytes(f"{root}/{path}")
            assert files.stat(f"{root}/{path}").size == len(data)
            found[path] = data
    return found


def without_empty(content: dict[str, bytes | None]) -> dict[str, bytes]:
    return {path: data for path, data in content.items() if data is not None}


@pytest.mark.parametrize("memory_bytes", [0, 3000, scratch.MEMORY_BYTES])
@settings(max_examples=few(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    transactions=st.lists(st.lists(CALLS, max_size=8), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_every_call_does_what_it_does_in_a_directory(
    tmp_path_factory, monkeypatch, memory_bytes, transactions, seed
) -> None:
    """New files are in memory, in the scratch directory, or move there."""
    monkeypatch.setattr(scratch, "MEMORY_BYTES", memory_bytes)
    local = str(tmp_path_factory.mktemp("local"))
    bucket = Bucket(open_store(f"memory://files-{seed}-{os.path.basename(local)}/x"))

    def run(files: BucketFiles, steps: list[tuple]) -> None:
        # A directory that is empty when a transaction ends is not in the next version.
        for path in sorted(p for p, data in tree(DEFAULT, local).items() if data is None):
            if not files.is_dir(f"{bucket.url}/{path}"):
                files.mkdir(f"{bucket.url}/{path}")
        for step in steps:
            outcomes = []
            for kind, root in ((DEFAULT, local), (files, bucket.url)):
                try:
                    call(kind, root, step)
                    outcomes.append(None)
                except LastwordError:
                    outcomes.append(LastwordError)
            assert outcomes[0] == outcomes[1], step
            assert tree(files, bucket.url) == tree(DEFAULT, local)

    for steps in transactions:
        bucket.transaction(partial(run, steps=steps))
        stored = bucket.files(bucket.load().snapshot)
        wanted = without_empty(tree(DEFAULT, local))
        assert (without_empty(tree(stored, bucket.url)) if wanted else {}) == wanted


@pytest.mark.parametrize("change", ["append", "pwrite", "truncate"])
def test_handles_stay_valid_when_a_file_moves_to_the_drive_and_is_removed(tmp_path: Path, change) -> None:
    with scratch.ScratchSpace(str(tmp_path), ManualClock(1_000)) as room:
        assert room.take(scratch.MEMORY_BYTES - 3000)
        file = scratch.LocalFile(room, 7)
        first, second = file.open("a"), file.open("a")
        assert (first.append(b"x" * 2000), file.path, list(tmp_path.iterdir())) == (0, None, [])
        assert second.stat() == (2000, 1_000, 7, "file")
        if change == "append":
            assert first.append(b"y" * 1500) == 2000
            content = b"x" * 2000 + b"y" * 1500
        elif change == "pwrite":
            first.pwrite(b"y" * 2500, 1000)
            content = b"x" * 1000 + b"y" * 2500
        else:
            first.truncate(3500)
            content = b"x" * 2000 + bytes(1500)
        assert file.path is not None and room.take(3000), "its memory was given back"
        for handle in (first, second, file.open("a")):
            assert handle.pread(5000, 0) == content
            assert handle.stat()[::2] == (3500, 7)
        assert b"".join(file.content()) == content
        file.set_mtime(5)
        assert file.facts() == (3500, 5, 7, "file")
        file.remove()
        assert second.pread(10, 995) == content[995:1005]
        assert first.append(b"z") == 3500
    assert list(tmp_path.iterdir()) == []


def test_a_stored_object_does_not_change_with_an_open_file(tmp_path: Path) -> None:
    """obstore's memory store keeps the buffer that it is given, and does not copy it."""
    store = open_store("memory://test-open-file/log")
    with scratch.ScratchSpace(str(tmp_path), ManualClock(1_000)) as room:
        file = scratch.LocalFile(room, 7)
        with file.open("a") as handle:
            handle.append(b"stored")
            store.put("object", file.content())
            handle.pwrite(b"other!", 0)
            handle.append(b" and more")
        stored = store.get("object")
        assert stored is not None and stored.data == b"stored"
        assert b"".join(file.content()) == b"other! and more"


def test_small_files_do_not_use_more_memory_than_they_may(tmp_path: Path) -> None:
    with scratch.ScratchSpace(str(tmp_path), ManualClock(1_000)) as room:
        assert room.take(scratch.MEMORY_BYTES - 10 * scratch.LEAST_BYTES)
        files = [scratch.LocalFile(room, number) for number in range(12)]
        assert [file.path is None for file in files] == [True] * 10 + [False] * 2
        files[0].remove()
        assert scratch.LocalFile(room, 13).path is None


def test_a_patch_of_a_large_file_is_stored_without_its_bytes(tmp_path: Path) -> None:
    bucket = Bucket(open_store(f"memory://patch-{tmp_path.name}/x"), scratch=str(tmp_path))
    path, data = f"{bucket.url}/big", bytearray(os.urandom(200_000))
    bucket.transaction(lambda files: files.write_atomic(path, bytes(data)))
    before = bucket.load().snapshot.entry("big")

    def patch(files: BucketFiles, at: int) -> None:
        files.rename(path, f"{path}-renamed")
        with files.open_append(f"{path}-renamed") as handle:
            handle.pwrite(b"0123456789", at)
            assert handle.pread(10, at) == b"0123456789"
        files.rename(f"{path}-renamed", path)

    for at in (5, 100_000, 199_990, 100_005):
        bucket.transaction(lambda files, at=at: patch(files, at))
        data[at : at + 10] = b"0123456789"
        entry = bucket.load().snapshot.entry("big")
        assert entry.object == before.object and entry.number == before.number and entry != before
        stored = bucket.files(bucket.load().snapshot)
        assert stored.read_bytes(path) == bytes(data)
        with stored.open_read(path) as handle:
            assert handle.pread(20, 99_998) == bytes(data[99_998:100_018])


def test_a_version_that_is_open_to_read_is_not_changed(tmp_path: Path) -> None:
    bucket = Bucket(open_store(f"memory://read-{tmp_path.name}/x"))
    path = f"{bucket.url}/a"
    bucket.transaction(lambda files: files.write_atomic(path, b"x" * 2000))
    files = bucket.files(bucket.load().snapshot)
    for change in (
        lambda: files.write_atomic(f"{bucket.url}/b", b""),
        lambda: files.unlink(path),
        lambda: files.open_append(path),
        lambda: files.rename(path, f"{path}2"),
    ):
        with pytest.raises(NotPermittedError):
            change()
    with pytest.raises(FileVanishedError):
        files.open_read(f"{bucket.url}/none")
    with pytest.raises(FileTakenError):
        bucket.transaction(lambda private: private.open_append(path, create=True, exclusive=True))


def test_a_file_in_the_manifest_is_read_and_changed_without_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(open_store("memory://inline/log"), clock=ManualClock())
    bucket.transaction(lambda files: files.write_atomic(f"{files.root}/a", b"small"))
    monkeypatch.setattr(bucket.reads, "open", None)
    with scratch.ScratchSpace(None, ManualClock()) as room:
        files = BucketFiles(bucket.url, bucket.load().snapshot, bucket.reads, scratch=room)
        assert files.read_bytes(f"{files.root}/a") == b"small"
        with files.open_append(f"{files.root}/a") as handle:
            handle.append(b"er")
        assert files.read_bytes(f"{files.root}/a") == b"smaller"
        assert files.stat(f"{files.root}/a").inode == bucket.load().snapshot.entry("a").number


def test_an_atomic_write_takes_the_name_without_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch.ScratchSpace(None, ManualClock()) as room:
        bucket = Bucket(open_store("memory://atomic/log"), clock=ManualClock())
        files = BucketFiles(bucket.url, bucket.load().snapshot, bucket.reads, scratch=room)
        path = f"{bucket.url}/a"
        files.write_atomic(path, b"first" * 1000)
        number = files.stat(path).inode
        with files.open_read(path) as handle:
            monkeypatch.setattr(files, "open_append", None)
            files.write_atomic(path, b"second")
            assert handle.pread(5, 0) == b"first"
        assert files.read_bytes(path) == b"second"
        assert files.stat(path).inode != number
        assert [key for key, _ in files.changes()] == ["a"]
        assert room.holds_at_most(scratch.LEAST_BYTES), "the memory of the file before was not given back"
