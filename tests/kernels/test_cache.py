from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastword.kernels import native
from lastword.kernels import table as fields
from lastword.kernels.batches import valid_rows
from lastword.kernels.warming import every_kernel
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
    assert native._private_folder(folder)
    folder.chmod(0o777)
    assert not native._private_folder(folder)


def test_a_folder_that_others_may_replace_is_not_trusted(tmp_path: Path) -> None:
    """The owner of the parent can rename the folder, and put another folder in its place."""
    above = tmp_path / "above"
    assert native._private_folder(above / "own")
    above.chmod(0o777)
    assert not native._private_folder(above / "own")
    above.chmod(0o1777)
    assert native._private_folder(above / "own"), "as /tmp is"
    if os.geteuid() == 0:
        above.chmod(0o755)
        os.chown(above, 12_345, 12_345)
        assert not native._private_folder(above / "own")


def test_a_folder_of_one_process_goes_with_it(tmp_path: Path) -> None:
    """If no folder could be kept, each process used to leave its own folder."""
    (tmp_path / "file").write_text("")
    (tmp_path / f"lastword-{os.getuid()}").write_text("")
    program = (
        "from lastword.kernels.native import cache_folder; print(cache_folder().is_dir(), cache_folder())"
    )
    (line,) = run(program, LASTWORD_CACHE_DIR=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    there, _, folder = line.partition(" ")
    assert there == "True" and "lastword-kernels-" in folder
    assert not list(tmp_path.glob("lastword-kernels-*"))


def test_an_unusable_choice_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LASTWORD_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(native.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = native.cache_folder.__wrapped__()
    assert folder.parent == tmp_path / f"lastword-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_usable_folder_needs_no_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have a folder for kernels and nothing else to write to."""

    def no_directory() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setenv("LASTWORD_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(native.tempfile, "gettempdir", no_directory)
    assert native.cache_folder.__wrapped__().parent == tmp_path / "kernels"


def array(layout: native.Layout) -> np.ndarray:
    return np.zeros((2,) * layout.dimensions, layout.dtype)


@pytest.mark.parametrize("kernel", list(every_kernel()), ids=lambda kernel: kernel.name)
def test_an_array_of_another_form_is_refused(kernel: native.Kernel) -> None:
    """Machine code would read outside the array, or other numbers than those that are there."""
    every = list(native.leaves(kernel.parameters))
    good = {leaf.name: array(leaf.type) for leaf in every if isinstance(leaf.type, native.Layout)}
    for name, value in good.items():
        other = "int32" if value.dtype != np.int32 else "int64"
        bad = [value.astype(other), value[None], None, bytes(8)]
        if next(leaf for leaf in every if leaf.name == name).type.writable:
            frozen = value.copy()
            frozen.flags.writeable = False
            bad += [frozen, np.zeros((4,) * value.ndim, value.dtype)[(slice(None, None, 2),) * value.ndim]]
        for one in bad:
            with pytest.raises(TypeError, match=re.escape(kernel.name)):
                kernel(*given(kernel.parameters, good | {name: one}))


def given(parameters: tuple[native.Leaf | native.Bundle, ...], arrays: dict[str, Any]) -> list[Any]:
    """Return arguments of a kernel: the arrays by the names of their leaves, and 0 for each number."""
    return [
        one.type(*given(one.parts, arrays)) if isinstance(one, native.Bundle) else arrays.get(one.name, 0)
        for one in parameters
    ]


def test_an_array_of_longlong_is_one_of_int64() -> None:
    """NumPy has two types of 64 bits; some functions return the one, others the other."""
    table = np.zeros((1, fields.FIELDS), np.longlong)
    assert table.dtype is not np.dtype(np.int64) and valid_rows(np.zeros(8, np.uint8), table, 0) == 0


def test_a_kept_file_that_is_not_whole_is_compiled_again(tmp_path: Path) -> None:
    load = "from lastword.kernels.table import index_rows; index_rows.load(); "
    program = load + "import sys; print('numba' in sys.modules)"
    environment = {"LASTWORD_CACHE_DIR": str(tmp_path)}
    assert run(program, **environment) == ["True"]
    (file,) = tmp_path.rglob("table.index_rows.o")
    whole = file.read_bytes()
    for damaged in (whole[:100] + b"?" + whole[101:], whole[:-1], b"")[:: stride(3)]:
        file.write_bytes(damaged)
        assert run(program, **environment) == ["True"]
        assert file.read_bytes()[16:].startswith(b"_ZN") and run(program, **environment) == ["False"]
    assert {path.name for path in file.parent.iterdir()} == {"call.o", file.name}


CHECKED = """
import numba
import numpy as np
from lastword.kernels import intrinsics
from lastword.kernels.memory import load64
from lastword.kernels.native import U8, kernel

@numba.njit
def load(data, position):
    return intrinsics.load64(data, position)

for position in (-1, 3, 1 << 62):
    try:
        print(load(np.zeros(10, np.uint8), position))
    except IndexError:
        print("refused")
print(load(np.zeros(10, np.uint8), 2))

@kernel
def word(data: U8, position: int) -> np.uint64:
    return load64(data, position)

try:
    print(word(np.zeros(10, np.uint8), 3))
except IndexError:
    print("refused")
"""


INDEXES = """
import numba, numpy as np
from lastword.kernels.intrinsics import not_negative
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
    checked = run(CHECKED + INDEXES, NUMBA_BOUNDSCHECK="1")
    assert checked[:5] == ["refused"] * 3 + ["0", "refused"], "raw loads are checked, too"
    assert checked[5:7] == ["2", "9"]
    assert checked[8:10] == ["2", "refused"]


def test_a_link_that_failed_is_refused_with_its_first_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    valid_rows.load()
    kept = native._read(native.cache_folder() / f"{valid_rows.name}.o") or b""
    code = b"missing\n" + kept.partition(b"\n")[2]
    monkeypatch.setattr(native, "_FAILED", {})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Symbols not found"):
            native._linked("test.missing", lambda: code, keeps=False)


@pytest.mark.slow
@pytest.mark.parametrize("level", "03")
def test_code_of_every_level_of_optimization_is_linked(level: str) -> None:
    """The function that calls kernels needs nothing of Numba, which is not there when code is kept."""
    program = "from lastword.kernels.batches import valid_rows; valid_rows.load()"
    assert run(program, NUMBA_OPT=level) == []


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
        # The checks are the same without optimization, and the code is compiled for this run alone.
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0"},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
