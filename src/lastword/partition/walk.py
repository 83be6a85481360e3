"""The batches of a segment that producers and transactions are about, markers with their content.

In plain Python, or through the kernels where there is so much to walk that loading them pays: small batches
cost Python several microseconds each. Both give the same batches; only the plain walk gives all others too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lastword.partition.transactions import control_of
from lastword.records.batch import BatchHeader
from lastword.records.control import ControlRecord
from lastword.records.formats import check_crc
from lastword.segment.segment import Segment
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

KERNEL_BYTES = 8 << 20
"""From here on the kernels are sooner done, loading them (about 0.4 s, once a process) included."""
KERNEL_BYTES_LOADED = 256 << 10


def walk(segment: Segment, first: int, *, verify: bool) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Every batch from position `first` on that has a producer id, is transactional or a control batch;
    others may come too.

    `verify`: check the checksum of every batch, those too that are not given out. Raises DataError.
    """
    loaded = "lastword.kernels" in sys.modules
    many = segment.size - first > (KERNEL_BYTES_LOADED if loaded else KERNEL_BYTES)
    return (_by_kernels if many else _plainly)(segment, first, verify)


def _plainly(
    segment: Segment, first: int, verify: bool
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    for header in segment.headers(first):
        marker = None
        if verify or header.control:
            data = segment.read_batch(header)
            if verify:
                check_crc(data, header, segment.file, position=0)
            marker = control_of(data, header, segment.file, position=0)
        yield header, marker


def _by_kernels(
    segment: Segment, first: int, verify: bool
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    from lastword.kernels import table as fields

    for chunk in segment.chunk_reader(first, verify=verify, inflate=False):
        wanted = (chunk.table[:, fields.ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
        wanted |= chunk.table[:, fields.PRODUCER_ID] >= 0
        for row in wanted.nonzero()[0].tolist():
            header = chunk.header(row)
            marker = None
            if header.control:
                at = int(chunk.table[row, fields.POSITION])
                marker = control_of(chunk.raw.data, header, chunk.file, position=at)
            yield header, marker
