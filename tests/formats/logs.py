"""Walks whole log files of any magic with the plain readers: what the tests of this folder stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lastword.partition.transactions import control_of
from lastword.records import formats
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord, RawRecord


def read_header(data: bytes, position: int, file: str) -> BatchHeader:
    return formats.read_header(data, position, len(data), file)


def headers(data: bytes, file: str) -> Iterator[BatchHeader]:
    """Headers of every batch; each checksum is verified."""
    position = 0
    while position < len(data):
        header = read_header(data, position, file)
        formats.check_crc(data, header, file)
        assert formats.crc_ok(data, header)
        yield header
        position += header.size


def records(data: bytes, file: str) -> Iterator[tuple[BatchHeader, RawRecord]]:
    for header in headers(data, file):
        for record in formats.read_records(data, header, file):
            yield header, record


def partition(directory: Path) -> Iterator[tuple[BatchHeader, ControlRecord | None, Path]]:
    """Batches of a partition directory in order, with the record of each control batch and the file."""
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for header in headers(data, path.name):
            yield header, control_of(data, header, path.name), path
