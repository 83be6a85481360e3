"""Damage to files."""

from __future__ import annotations

from pathlib import Path


def flip(path: str | Path, position: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file; a negative position counts from its end."""
    data = bytearray(Path(path).read_bytes())
    data[position] ^= bits
    Path(path).write_bytes(data)
