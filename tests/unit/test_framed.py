"""The frame of private files: every changed bit, every cut and every run of zeros is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import CorruptFileError
from lastword.files import DEFAULT
from lastword.files.framed import NEWER, Framed, _crc

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


def test_another_version_is_refused_by_name() -> None:
    newer, older = (Framed("lease", version, "", "").encode(FIELDS) for version in (3, 1))
    with pytest.raises(CorruptFileError, match="version 3; this program reads version 2") as error:
        FORM.decode(newer, "/d/x")
    assert error.value.code == NEWER and "newer" in str(error.value.remedy)
    with pytest.raises(CorruptFileError, match="version 1 is too old") as error:
        FORM.decode(older, "/d/x")
    assert error.value.code == "bad-lease"


@pytest.mark.parametrize("content", [b"{", b"[1]", b"7", b'{"position": ' + b"[" * 100_000])
def test_a_frame_of_anything_but_an_object_is_damage(content: bytes) -> None:
    framed = b"lastword lease 2 %08x\n%s" % (_crc("lease", 2, content), content)
    with pytest.raises(CorruptFileError, match="the content is not a JSON object"):
        FORM.decode(framed, "/d/x")


def test_a_file_of_another_kind_is_damage() -> None:
    with pytest.raises(CorruptFileError, match="the checksum is wrong"):
        FORM.decode(Framed("quarantine", 2, "", "").encode(FIELDS), "/d/x")
