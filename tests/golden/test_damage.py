"""Damaged copies of Kafka's directories: a reader raises an error that names the file and the position.

A crash may leave damage in the last segment's tail, so a reader ends before it. Damage anywhere else is loss,
and must not look like the gaps that a cleaning leaves.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lastword
from lastword.errors import DataError
from tests.golden import loader

CASES = [name for name in loader.names("v2-*") if name != "v2-big"]  # that case has a single segment
HEADER_BYTES = 61


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    roots: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in roots:
            roots[name] = loader.case(name).unpack(tmp_path_factory.mktemp(name)) / "data"
        return roots[name]

    return directory


def records(directory: Path, name: str) -> list[lastword.Record[bytes, bytes]]:
    with lastword.open(directory) as logs:
        return list(logs.topic(name).read())


def damaged(source: Path, target: Path, change: Callable[[bytes], bytes], *, last: bool = False) -> Path:
    """Copy a directory and change one segment, the last or one in the middle; return the segment's path."""
    shutil.copytree(source, target)
    logs = loader.partition_files(target)
    log = logs[-1] if last else logs[len(logs) // 2]
    log.write_bytes(change(log.read_bytes()))
    return log


def is_refused(directory: Path, name: str, log: Path) -> None:
    """Check that a read returns right records, then an error with its place; `verify` reports it."""
    records = []
    with lastword.open(directory) as logs:
        with pytest.raises(DataError) as caught:
            for record in logs.topic(name).read():
                records.append(record)
        problems = logs.verify().problems
    assert caught.value.file == str(log)
    assert caught.value.position is not None and 0 <= caught.value.position < 1 << 31
    assert str(log) in str(caught.value)
    lines = {line["offset"]: line for line in loader.case(name).expected("data")}
    assert all(
        (r.key, r.timestamp) == (lines[r.offset]["key"], lines[r.offset]["timestamp"]) for r in records
    )
    assert any(Path(problem.file).stem == log.stem for problem in problems)


@pytest.mark.parametrize("name", CASES)
def test_a_segment_that_was_cut_inside_a_batch(
    name: str, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    places = random.Random(name)
    log = damaged(unpacked(name), tmp_path / "logs", lambda data: data[: places.randrange(1, 62)])
    is_refused(tmp_path / "logs", name, log)


@pytest.mark.parametrize("name", CASES)
def test_a_segment_that_was_emptied(name: str, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    log = damaged(unpacked(name), tmp_path / "logs", lambda data: b"")
    is_refused(tmp_path / "logs", name, log)


def batches_in_last_segment(name: str) -> int:
    files = [line["file"] for line in loader.case(name).batches("data")]
    return files.count(files[-1])


@pytest.mark.parametrize(
    ("name", "last"),
    [(name, False) for name in CASES] + [(name, True) for name in CASES if batches_in_last_segment(name) > 1],
)
def test_a_flipped_bit_in_records_that_others_follow(
    name: str, last: bool, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    bit = random.Random(name).randrange(8)

    def flip(data: bytes) -> bytes:
        return data[:HEADER_BYTES] + bytes([data[HEADER_BYTES] ^ 1 << bit]) + data[HEADER_BYTES + 1 :]

    is_refused(tmp_path / "logs", name, damaged(unpacked(name), tmp_path / "logs", flip, last=last))


@pytest.mark.parametrize("byte", range(6), ids=lambda byte: f"byte{byte}")
def test_a_base_offset_that_belongs_to_a_later_segment(
    byte: int, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    """No checksum covers the base offset; a reader that used it would skip all records behind it."""

    def flip(data: bytes) -> bytes:
        return data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :]

    is_refused(tmp_path / "logs", "v2-none", damaged(unpacked("v2-none"), tmp_path / "logs", flip))


@pytest.mark.parametrize("name", CASES)
def test_a_torn_tail_ends_the_log_before_it(
    name: str, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    log = damaged(unpacked(name), tmp_path / "logs", lambda data: data[:-1], last=True)
    whole = [line["offset"] for line in loader.case(name).expected("data")]
    last_batch = loader.case(name).batches("data")[-1]
    offsets = [record.offset for record in records(tmp_path / "logs", name)]
    assert offsets == [offset for offset in whole if offset < last_batch["baseOffset"]]
    with lastword.open(tmp_path / "logs") as logs:
        assert any(Path(problem.file) == log for problem in logs.verify().problems)


def test_a_damaged_directory_is_left_as_it_was(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    log = damaged(unpacked("v2-lz4"), tmp_path / "logs", lambda data: data[:100])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    is_refused(tmp_path / "logs", "v2-lz4", log)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
