"""Placing ready batches, header by header, and the rule of where a segment ends."""

from __future__ import annotations

import struct

import google_crc32c

MOST = 2**63 - 1


def place_ready(batches: list[bytes], next_offset: int, epoch: int) -> tuple[int, list[bytes]]:
    """How many from the first on are plainly sound, and all of them in their place if that is all."""
    placed = []
    for number, data in enumerate(batches):
        if len(data) < 61:
            return number, batches
        _, length, _, magic, crc, _, delta, _, _, producer, _, _, count = struct.unpack_from(
            ">qiibIhiqqqhii", data
        )
        if (
            length != len(data) - 12
            or magic != 2
            or delta < 0
            or count < 0
            or producer != -1
            or next_offset + delta > MOST - 1
            or crc != google_crc32c.value(data[21:])
        ):
            return number, batches
        placed.append(struct.pack(">qii", next_offset, length, epoch) + data[16:])
        next_offset += delta + 1
    return len(batches), placed


def rows_before_roll(
    rows: list[tuple[int, int, int]],
    unasked: int,
    segment_size: int,
    most_bytes: int,
    most_offset: int,
    latest: int | None,
    overdue: bool,
) -> int:
    """Rows are (size, last offset, largest timestamp). `latest` None: only `overdue` counts."""
    before = segment_size
    for number, (size, last_offset, timestamp) in enumerate(rows):
        too_large = before + size > most_bytes
        too_old = before > 0 and (overdue if latest is None else timestamp > latest)
        full = before > 0 if too_large else last_offset > most_offset or too_old
        if full and number >= unasked:
            return number
        before += size
    return len(rows)
