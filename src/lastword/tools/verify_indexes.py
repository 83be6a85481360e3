"""The indexes of one segment against its batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.segment import names
from lastword.segment.offset_index import OffsetIndex
from lastword.segment.segment import Segment
from lastword.segment.time_index import TimeIndex
from lastword.segment.txn_index import ENTRY as TXN_ENTRY
from lastword.segment.txn_index import AbortedTransaction, check_entries, decode_entries
from lastword.tools.findings import Account, Batches


def verify_offset_index(files: Files, segment: Segment, batches: Batches, account: Account) -> None:
    path = segment.path(names.INDEX)
    if not files.exists(path):
        if segment.size:
            account.add(path, None, None, "missing-index", "there is none", True)
        return
    index = OffsetIndex(files.read_bytes(path), segment.base_offset, segment.size)
    for place, entry in enumerate(index.entries()):
        if not batches.indexed(entry.offset, entry.position):
            account.add(
                path,
                8 * place,
                entry.offset,
                "bad-index",
                f"no batch that ends with offset {entry.offset} lies at position {entry.position}",
                True,
            )
            return
    if index.damaged and segment.size == (files.stat(segment.file) or segment).size:
        account.add(path, index.size_bytes, None, "bad-index", "the entries from here on make no sense", True)


def verify_time_index(files: Files, segment: Segment, batches: Batches, account: Account) -> None:
    path = segment.path(names.TIME_INDEX)
    if not files.exists(path):
        if segment.size:
            account.add(path, None, None, "missing-index", "there is none", True)
        return
    index = TimeIndex(files.read_bytes(path), segment.base_offset)
    last_offsets = list(batches.largest)
    for place, entry in enumerate(index.entries()):
        at = bisect_left(last_offsets, entry.offset)
        largest = batches.largest[last_offsets[at]] if at < len(last_offsets) else None
        if largest is None and segment.active:
            continue  # appended after the log was listed
        if largest != entry.timestamp:
            account.add(
                path,
                12 * place,
                entry.offset,
                "bad-time-index",
                f"timestamp {entry.timestamp} is not the largest up to offset {entry.offset}",
                True,
            )
            return
    if index.damaged:
        account.add(
            path, index.size_bytes, None, "bad-time-index", "the entries from here on make no sense", True
        )


def verify_txn_index(
    files: Files,
    segment: Segment,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    account: Account,
) -> None:
    """An entry may begin below what is left of its transaction, and stay when nothing is left of it."""
    path = segment.path(names.TXN_INDEX)
    entries: list[AbortedTransaction] = []
    if files.exists(path):
        try:
            entries = decode_entries(files.read_bytes(path), path)
            check_entries(entries, segment.base_offset, path)
        except CorruptFileError as error:
            account.add(path, error.position, error.offset, "bad-txn-index", error.message, True)
            return
    known = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
    for one in aborted:
        first = known.get((one.producer_id, one.last_offset))
        if first is None or first > one.first_offset:
            account.add(
                path,
                None,
                one.last_offset,
                "bad-txn-index",
                f"no entry for the transaction of producer {one.producer_id} that begins with offset "
                f"{one.first_offset} and is aborted at {one.last_offset}",
                True,
            )
            return
    for place, entry in enumerate(entries):
        if entry.last_offset >= next_offset and not segment.active:
            account.add(
                path,
                place * TXN_ENTRY.size,
                entry.last_offset,
                "bad-txn-index",
                f"offset {entry.last_offset} is not in this segment",
                True,
            )
            return
