"""Batches of a file in blocks: all batches in order, and each changed byte is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword import kernels
from lastword.errors import CorruptBatchError, CorruptFileError
from lastword.files import DEFAULT
from lastword.partition import staged_batches
from lastword.partition.staged_batches import blocks_of
from tests.partition.logs import batch
from tests.support.exhaustive import few

ANY_TMP = settings(
    max_examples=few(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WITHOUT_KERNELS = pytest.mark.parametrize("loaded", [True, False], ids=["kernels", "no kernels"])


def build_batches(sizes: list[int]) -> list[bytes]:
    return [bytes(batch((b"k", b"v" * size))) for size in sizes]


@ANY_TMP
@given(st.lists(st.sampled_from([0, 1, 100, 400]), max_size=12), st.integers(1, 700))
def test_all_batches_in_their_order(tmp_path: Path, sizes: list[int], block_bytes: int) -> None:
    """Batches may be larger than a block. A slice equals the slice of a list."""
    (tmp_path / "f").write_bytes(b"".join(build_batches(sizes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_batches, "BLOCK_BYTES", block_bytes)
        batches = []
        for block in blocks_of(DEFAULT, str(tmp_path / "f")):
            assert block.size_bytes == sum(map(len, block)) and list(block[1:]) == list(block)[1:]
            batches += map(bytes, block)
            block.check("f")
    assert batches == build_batches(sizes)


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_a_file_that_ends_within_a_batch(tmp_path: Path, cut: int) -> None:
    data = b"".join(build_batches([10, 100]))
    (tmp_path / "f").write_bytes(data[:-cut])
    blocks = blocks_of(DEFAULT, str(tmp_path / "f"))
    assert [len(encoded) for encoded in next(blocks)] == [len(build_batches([10])[0])]
    with pytest.raises(CorruptFileError, match="no whole batch") as caught:
        next(blocks)
    assert caught.value.position == len(build_batches([10])[0])


@WITHOUT_KERNELS
def test_each_changed_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool) -> None:
    """The bytes from the attributes on: the checksum does not cover the bytes before."""
    if not loaded:
        monkeypatch.delitem(sys.modules, "lastword.kernels")
    data = b"".join(build_batches([3, 0, 7, 1, 2]))
    second = len(build_batches([3])[0])
    for position in range(second + 21, second + len(build_batches([0])[0])):
        changed = bytearray(data)
        changed[position] ^= 1
        (tmp_path / "f").write_bytes(changed)
        (block,) = blocks_of(DEFAULT, str(tmp_path / "f"))
        with pytest.raises(CorruptBatchError):
            block.check("f")


def test_kernels_have_the_room_they_want() -> None:
    assert staged_batches.SLACK_BYTES >= kernels.SLACK
