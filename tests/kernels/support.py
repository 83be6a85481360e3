"""Helpers that make the arrays that kernels take."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lastword.kernels import SLACK
from lastword.kernels.batches import walk_batches
from lastword.kernels.pages import DeadBits
from lastword.kernels.table import FIELDS
from lastword.resolve.bitmaps import DeadBitmaps

NO_BITS = DeadBitmaps.of([]).arrays


def padded(data: bytes, filler: int = 0xAA) -> np.ndarray:
    """Return the bytes with slack behind them, whose content must not matter."""
    array = np.full(len(data) + SLACK, filler, np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array


def walked(
    data: bytes, next_offset: int = 0, *, verify: bool = True
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return (raw, table, position reached, status)."""
    raw = padded(data)
    table = np.zeros((len(data) // 26 + 1, FIELDS), np.int64)
    rows, position, _, status = walk_batches(raw, 0, len(data), 0, next_offset, verify, table, 0)
    return raw, table[:rows], position, status


def bits(offsets: Iterable[int]) -> DeadBits:
    return DeadBitmaps.of(sorted(offsets)).arrays
