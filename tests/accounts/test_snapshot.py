"""The accounts' file: written whole or not at all, and rejected if any byte of it differs."""

import numpy as np
import pytest

from lastword.accounts import snapshot
from lastword.errors import CorruptFileError
from lastword.files import DEFAULT

ARRAYS = {
    "offsets": np.arange(1000, dtype=np.int64),
    "copies": np.arange(13, dtype=np.uint8),
    "bits": np.ones((3, 64), np.uint64),
    "nothing": np.empty(0, np.int64),
}


def _saved(tmp_path):
    path = str(tmp_path / "accounts")
    size = snapshot.save(DEFAULT, path, {"limit": 42, "name": "ü"}, ARRAYS)
    return path, size


def test_comes_back_as_it_was(tmp_path):
    path, size = _saved(tmp_path)
    assert (tmp_path / "accounts").stat().st_size == size
    saved = snapshot.load(DEFAULT, path)
    assert saved is not None
    assert saved.header == {"limit": 42, "name": "ü"}
    assert saved.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert saved.arrays[name].dtype == array.dtype
        assert np.array_equal(saved.arrays[name], array)
    assert snapshot.load_header(DEFAULT, path)["limit"] == 42


def test_there_is_none(tmp_path):
    assert snapshot.load(DEFAULT, str(tmp_path / "accounts")) is None
    assert snapshot.load_header(DEFAULT, str(tmp_path / "accounts")) is None


def test_every_flipped_byte_and_every_length_is_noticed(tmp_path):
    path = str(tmp_path / "accounts")
    snapshot.save(DEFAULT, path, {"a": 1}, {"offsets": np.arange(4, dtype=np.int64)})
    whole = (tmp_path / "accounts").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "accounts").write_bytes(whole[:at] + bytes([whole[at] ^ 0x21]) + whole[at + 1 :])
        with pytest.raises(CorruptFileError):
            snapshot.load(DEFAULT, path)
        (tmp_path / "accounts").write_bytes(whole[:at])
        with pytest.raises(CorruptFileError):
            snapshot.load(DEFAULT, path)
    (tmp_path / "accounts").write_bytes(whole + b"\0")
    with pytest.raises(CorruptFileError):
        snapshot.load(DEFAULT, path)


@pytest.mark.parametrize(
    "array", [["x", "<i8", [1 << 60]], ["x", "|O", [1]], ["x", "<i8", [-1]], ["x", 3, 4]]
)
def test_a_size_is_checked_before_it_is_used(tmp_path, array):
    import json
    import struct

    text = json.dumps({"arrays": [array]}).encode()
    (tmp_path / "accounts").write_bytes(struct.pack("<8sQ", b"lwaccts1", len(text)) + text)
    with pytest.raises(CorruptFileError):
        snapshot.load(DEFAULT, str(tmp_path / "accounts"))
