from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lastword import kernels
from lastword.kernels.warming import warm
from tests.naive.pack import rebase
from tests.support.exhaustive import stride


def run(program: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    assert kernels._private_folder(folder)
    folder.chmod(0o777)
    assert not kernels._private_folder(folder)


def test_a_folder_that_others_may_replace_is_not_trusted(tmp_path: Path) -> None:
    """The owner of the parent can rename the folder, and put another folder in its place."""
    above = tmp_path / "above"
    assert kernels._private_folder(above / "own")
    above.chmod(0o777)
    assert not kernels._private_folder(above / "own")
    above.chmod(0o1777)
    assert kernels._private_folder(above / "own"), "as /tmp is"
    if os.geteuid() == 0:
        above.chmod(0o755)
        os.chown(above, 12_345, 12_345)
        assert not kernels._private_folder(above / "own")


def test_a_folder_of_one_process_goes_with_it(tmp_path: Path) -> None:
    """If no folder could be kept, each process used to leave its own folder."""
    (tmp_path / "file").write_text("")
    (tmp_path / f"lastword-{os.getuid()}").write_text("")
    program = "from lastword.kernels import cache_folder; print(cache_folder().is_dir(), cache_folder())"
    (line,) = run(program, LASTWORD_CACHE_DIR=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    there, _, folder = line.partition(" ")
    assert there == "True" and "lastword-kernels-" in folder
    assert not list(tmp_path.glob("lastword-kernels-*"))


def test_no_folder_where_a_file_lies(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not kernels._private_folder(tmp_path / "file")
    assert not kernels._private_folder(tmp_path / "file" / "below")


def test_an_unusable_choice_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LASTWORD_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = kernels.cache_folder.__wrapped__()
    assert folder.parent == tmp_path / f"lastword-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_usable_folder_needs_no_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a folder for kernels and nothing else to write to."""

    def no_directory() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("LASTWORD_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernels.tempfile, "gettempdir", no_directory)
    assert kernels.cache_folder.__wrapped__().parent == tmp_path / "kernels"


def test_warm_leaves_nothing_to_compile() -> None:
    """`warm` uses the types of the real callers: a whole round afterwards compiles nothing new."""
    from lastword.kernels import (
        batches,
        columns,
        digest,
        hashing,
        key_batch,
        legacy,
        offset_map,
        pack,
        pages,
        repack,
    )

    warm()
    dispatchers = {
        f"{module.__name__}.{name}": dispatcher
        for module in (
            batches,
            columns,
            digest,
            hashing,
            legacy,
            offset_map,
            pack,
            pages,
            key_batch,
            repack,
        )
        for name, dispatcher in vars(module).items()
        if hasattr(dispatcher, "signatures")
    }
    before = {name: len(dispatcher.signatures) for name, dispatcher in dispatchers.items()}
    _whole_round()
    assert {name: len(dispatcher.signatures) for name, dispatcher in dispatchers.items()} == before


def _whole_round() -> None:
    import numpy as np
    import pyarrow as pa

    from lastword.kernels.digest import sum_contents, sum_pairs
    from lastword.kernels.hashing import digest_seeds
    from lastword.kernels.repack import JOINING_FIELDS, RepackOutput, RepackSource, bytes_needed, repack_rows
    from lastword.records.chunk import chunk_of
    from lastword.records.columns import decode_columns, raw_records, to_arrow
    from lastword.records.formats import build_message, build_wrapper
    from lastword.records.pack import pack_arrow
    from lastword.records.record import RawRecord
    from lastword.resolve import resolve
    from tests.resolve.support import MemorySegment

    keys = pa.array([b"k%d" % (i % 150) for i in range(200)])
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": None}]] * 200, kind)
    data = bytearray().join(pack_arrow(keys, keys, np.zeros(200, np.int64), headers, batch_bytes=500))
    rebase(data, 0, 0)
    resolution = resolve([MemorySegment(bytes(data), 0, 200)], map_bytes=1500, salt=b"", now_ms=0)
    assert resolution.passes > 1
    chunk = chunk_of(data)
    columns = decode_columns(chunk)
    to_arrow(columns.select(~resolution.dead.mask(columns.offset)), chunk)
    raw_records(columns, chunk)
    old = [RawRecord(n, 0, 0, b"k", b"v") for n in (1, 2)]
    wrapped = chunk_of(build_message(0, 0, b"k", b"v") + build_wrapper(1, 3, old))
    assert len(decode_columns(wrapped)) == 3
    resolution.dead.count(0, 100)
    out = np.empty(1 << 16, np.uint8)
    table = np.empty((100, chunk.table.shape[1]), np.int64)
    retain = np.zeros(chunk.rows, np.uint8)
    classes = np.empty(100, np.int64)
    dead = resolution.dead.window(0, 200).arrays
    joining, side = np.full(JOINING_FIELDS, -1, np.int64), np.empty(64, np.uint8)
    bytes_needed(chunk.table, 0, side)
    source, output = (
        RepackSource(chunk.raw, chunk.uncompressed, chunk.table),
        RepackOutput(out, table, classes, joining, side),
    )
    repack_rows(source, chunk.rows, 0, retain, dead, -1, output, 0, 0)
    all_stay, ends = np.ones(chunk.rows, np.uint8), np.empty(chunk.rows, np.uint8)
    largest = np.empty(chunk.rows, np.int64)
    sum_contents(chunk.uncompressed, chunk.table, chunk.rows, dead, all_stay, -1, ends, largest)
    sum_pairs(chunk.uncompressed, chunk.table, chunk.rows, *digest_seeds(resolution.digest_seed))


CHECKED = """
import numba
import numpy as np
from lastword.kernels import memory

@numba.njit
def load(data, position):
    return memory.load64(data, position)

for position in (-1, 3, 1 << 62):
    try:
        print(load(np.zeros(10, np.uint8), position))
    except IndexError:
        print("refused")
print(load(np.zeros(10, np.uint8), 2))
"""


@pytest.mark.slow
def test_the_bounds_check_reaches_raw_loads() -> None:
    assert run(CHECKED, NUMBA_BOUNDSCHECK="1") == ["refused"] * 3 + ["0"]


INDEXES = """
import numba, numpy as np
from lastword.kernels.memory import not_negative
plain = numba.njit(lambda data, index: data[index])
proved = numba.njit(lambda data, index: data[not_negative(index)])
data = np.arange(10)
for read in (plain, proved):
    for index in (2, -1):
        try:
            print(read(data, index))
        except IndexError:
            print("refused")
    (code,) = read.inspect_llvm().values()
    print("select" in code)
"""


@pytest.mark.slow
def test_the_sign_of_an_index_is_not_tested_or_is_refused() -> None:
    only_valid = run(INDEXES.replace("(2, -1)", "(2,)"))  # a negative index breaks the promise
    assert only_valid == ["2", "True", "2", "False"]
    checked = run(INDEXES, NUMBA_BOUNDSCHECK="1")
    assert checked[:2] == ["2", "9"]
    assert checked[3:5] == ["2", "refused"]


@pytest.mark.slow
def test_no_access_out_of_bounds() -> None:
    """The kernels' tests again, with every raw access checked; an IndexError fails them.

    The sample has the kernels that parse bytes of others; `make exhaustive` takes every kernel.
    """
    here = Path(__file__).parent
    parsers = ["test_batches.py", "test_lz4.py", "test_varint.py"]
    tests = [here / name for name in parsers] if stride(2) > 1 else [here, here.parent / "resolve"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *map(str, tests),
        ],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1"},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
