"""The frame of private files: every changed bit, every cut and every run of zeros is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import CorruptFileError
from lastword.files import DEFAULT
from lastword.files.framed import NEWER, Framed

FORM = Framed("lease", 2, "bad-lease", "take it again")
FIELDS = {"position": 120, "name": "grüße", "none": None, "list": [1, 2]}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    assert FORM.load(DEFAULT, path) is None
    FORM.save(DEFAULT, path, FIELDS)
    assert FORM.load(DEFAULT, path) == FIELDS
    assert Path(path).read_bytes().startswith(b"lastword lease 2 ")


def test_every_flipped_bit_every_cut_and_zeros_are_damage() -> None:
    data = FORM.encode(FIELDS)
    for position in range(len(data)):
        for bit in range(8):
            mutant = bytearray(data)
            mutant[position] ^= 1 << bit
            with pytest.raises(CorruptFileError) as caught:
                FORM.decode(bytes(mutant), "/d/x")
            assert caught.value.code == "bad-lease" and caught.value.remedy == "take it again"
        for mutant in (data[:position], data[:position] + bytes(len(data) - position)):
            with pytest.raises(CorruptFileError, match="/d/x: damaged file of kind 'lease'"):
                FORM.decode(bytes(mutant), "/d/x")
    with pytest.raises(CorruptFileError):
        FORM.decode(data + b"\n", "/d/x")


def test_files_of_version_0_have_no_frame() -> None:
    assert FORM.decode(b'{"position": 7}\n', "/d/x") == {"position": 7}
    for data in (b"{", b"[1]", b"7", b'{"position": 7', b'{"position": ' + b"[" * 100_000):
        with pytest.raises(CorruptFileError, match="damaged"):
            FORM.decode(data, "/d/x")


def test_a_newer_version_is_refused_by_name_and_an_older_one_is_read() -> None:
    newer = Framed("lease", 3, "", "").encode(FIELDS)
    with pytest.raises(CorruptFileError, match="version 3; this program reads versions up to 2") as error:
        FORM.decode(newer, "/d/x")
    assert error.value.code == NEWER and "newer" in str(error.value.remedy)
    older = Framed("lease", 1, "", "").encode(FIELDS)
    assert FORM.decode(older, "/d/x") == FIELDS
    changed = Framed("lease", 2, "bad-lease", "take it again", oldest=2)
    assert changed.decode(FORM.encode(FIELDS), "/d/x") == FIELDS
    with pytest.raises(CorruptFileError, match="version 1 is too old") as error:
        changed.decode(older, "/d/x")
    assert error.value.code == "bad-lease"


def test_a_file_of_another_kind_is_damage() -> None:
    with pytest.raises(CorruptFileError, match="the checksum is wrong"):
        FORM.decode(Framed("quarantine", 2, "", "").encode(FIELDS), "/d/x")
