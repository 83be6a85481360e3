"""The indexes of one segment against its batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.records.batch import BatchHeader
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
        if largest is None and segment.size != (files.stat(segment.file) or segment).size:
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
    aborted: Sequence[AbortedTransaction],
    account: Account,
    batch_at: Callable[[int], BatchHeader | None],
) -> None:
    """Compare the index with the transactions that the markers of this segment abort.

    A cleaning removes batches and keeps entries: an entry may begin at an offset that is gone, below what is
    left of its transaction, and stay when marker and data are gone. An offset that is still in the log must
    be what the entry says of it.

    Args:
        aborted: found in the log, by the markers of this segment.
        batch_at: returns the batch of the log that holds an offset.
    """
    path = segment.path(names.TXN_INDEX)
    entries: list[AbortedTransaction] = []
    if files.exists(path):
        try:
            entries = decode_entries(files.read_bytes(path), path)
            check_entries(entries, segment.base_offset, path)
        except CorruptFileError as error:
            account.add(path, error.position, error.offset, "bad-txn-index", error.message, True)
            return
    known = {(entry.producer_id, entry.last_offset) for entry in entries}
    for one in aborted:
        if (one.producer_id, one.last_offset) not in known:
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
    found = {(one.producer_id, one.last_offset): one for one in aborted}
    for place, entry in enumerate(entries):
        text = _contradiction(entry, found.get((entry.producer_id, entry.last_offset)), segment, batch_at)
        if text is not None:
            account.add(path, place * TXN_ENTRY.size, entry.last_offset, "bad-txn-index", text, True)
            return


def _contradiction(
    entry: AbortedTransaction,
    found: AbortedTransaction | None,
    segment: Segment,
    batch_at: Callable[[int], BatchHeader | None],
) -> str | None:
    """Why the log contradicts an entry; None if it does not. `found`: the transaction of that marker."""
    if entry.last_offset >= segment.next_offset and not segment.active:
        return f"offset {entry.last_offset} is not in this segment"
    if found is None:
        marker = batch_at(entry.last_offset)
        if marker is None or (marker.control and marker.producer_id == entry.producer_id):
            return None
        if not marker.control and not _is_dense(marker):
            return None
        return f"no transaction of producer {entry.producer_id} is aborted at {entry.last_offset}"
    if entry.first_offset != found.first_offset:
        holder = batch_at(entry.first_offset)
        if entry.first_offset > found.first_offset or (holder is not None and _is_dense(holder)):
            return (
                f"the transaction that is aborted at {entry.last_offset} begins with offset "
                f"{found.first_offset}, not {entry.first_offset}"
            )
    stable = entry.last_stable_offset
    if stable != found.last_stable_offset:
        holder = batch_at(stable)
        if stable > found.last_stable_offset or (holder is not None and _is_dense(holder)):
            return (
                f"at the marker {entry.last_offset} the last stable offset was {found.last_stable_offset}, "
                f"not {stable}"
            )
    return None


def _is_dense(header: BatchHeader) -> bool:
    """Does the batch have a record at each of its offsets?"""
    return header.count == header.last_offset - header.base_offset + 1
