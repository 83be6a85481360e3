"""Helpers that read whole log files of any magic with the plain readers."""

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
    """Yield the header of every batch; verify each checksum."""
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
    """Yield the batches of a partition in order.

    Each item has the header, the record if it is a control batch, and the file.
    """
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for header in headers(data, path.name):
            yield header, control_of(data, header, path.name), path
