"""One log: its segments, every batch of them, every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lastword.errors import DataError, FileVanishedError
from lastword.files import Files
from lastword.partition.transactions import OpenTransactions, control_of
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader
from lastword.records.legacy import UNKNOWN_COUNT
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction
from lastword.tools.findings import Account, Batches, EpochRun
from lastword.tools.problem import bad_records
from lastword.tools.verify_indexes import verify_offset_index, verify_time_index, verify_txn_index
from lastword.tools.walk import Walk

NO_LEADER_EPOCH = -1
KERNEL_BYTES = 4 << 20  # from here on loading the kernels costs less than decoding records in Python


def verify_log(
    files: Files, view: PartitionView, quick: bool, account: Account, advance: Callable[[int], None]
) -> bool:
    """Check the segments of a view with their indexes, except those in `account.sound`.

    Args:
        advance: called with the bytes of each segment.

    Returns:
        False if a file vanished: the segments of the log are others by now, and are to be checked too.
    """
    segments = list(view.segments)
    next_offset = 0
    complete = True
    transactions = OpenTransactions()
    for place, segment in enumerate(segments):
        if segment.base_offset < next_offset:
            account.add(
                segment.file,
                None,
                segment.base_offset,
                "offsets-fall",
                f"the segment before it goes up to {next_offset - 1}",
                False,
            )
        following = segments[place + 1].base_offset if place + 1 < len(segments) else None
        identity = (segment.inode, segment.size, segment.mtime_ms)
        if identity in account.sound:
            transactions = OpenTransactions()
            next_offset = following or next_offset
            continue
        before = len(account.problems)
        try:
            next_offset = _verify_segment(files, view, segment, following, quick, account, transactions)
            if len(account.problems) == before and not transactions:  # or the next one lacks their beginnings
                account.sound.add(identity)
        except FileVanishedError:
            complete = False
            next_offset = following or next_offset
        advance(segment.size)
    return complete


def _verify_segment(
    files: Files,
    view: PartitionView,
    segment: Segment,
    following: int | None,
    quick: bool,
    account: Account,
    transactions: OpenTransactions,
) -> int:
    """Check one segment and its indexes; returns the offset after its last one. `transactions`: those that
    are open where it begins, and then where it ends."""
    batches = Batches()
    epochs: list[EpochRun] = []
    account.epochs[segment.inode, segment.size, segment.mtime_ms] = epochs
    aborted: list[AbortedTransaction] = []
    next_offset = segment.base_offset
    before = len(account.problems)
    walked = (
        _quick_headers(segment, account)
        if quick
        else _sound_headers(segment, account, transactions, aborted, is_last=following is None)
    )
    for header in walked:
        if header.base_offset < next_offset or header.last_offset < header.base_offset:
            account.add(
                segment.file,
                header.position,
                header.base_offset,
                "offsets-fall",
                f"offsets {header.base_offset}-{header.last_offset} do not follow {next_offset - 1}",
                False,
            )
        if following is not None and header.last_offset >= following:
            account.add(
                segment.file,
                header.position,
                header.base_offset,
                "offsets-fall",
                f"offset {header.last_offset} belongs to the next segment, which begins with {following}",
                False,
            )
        next_offset = max(next_offset, header.last_offset + 1)
        account.batches += 1
        account.records += max(header.count, 0)
        batches.add(header)
        if header.magic == 2 and header.leader_epoch != NO_LEADER_EPOCH:
            first = header.base_offset
            if epochs and epochs[-1].epoch == header.leader_epoch:
                first = epochs.pop().first
            epochs.append(EpochRun(first, header.base_offset, header.leader_epoch))
    # Positions behind damage are not known to the index check, and in the middle of a swap the indexes
    # have other names.
    if len(account.problems) == before and not segment.suffix:
        verify_offset_index(files, segment, batches, account)
        verify_time_index(files, segment, batches, account)
        verify_txn_index(files, segment, aborted, account, lambda offset: _batch_at(view, offset))
    return next_offset


def _batch_at(view: PartitionView, offset: int) -> BatchHeader | None:
    """The batch that holds an offset; None if it is gone."""
    at = view.segment_set.floor(offset)
    if at < 0 or not view.log_start <= offset < view.log_end:
        return None
    segment = view.segments[at]
    for header in segment.headers(segment.position_of(offset)):
        return header if header.base_offset <= offset <= header.last_offset else None
    return None


def _quick_headers(segment: Segment, account: Account) -> Iterable[BatchHeader]:
    try:
        for header in segment.headers():
            account.read_bytes += header.size if header.size < 4096 else 4096
            yield header
    except DataError as error:
        account.add(segment.file, error.position, error.offset, error.code, error.message, False)


def _sound_headers(
    segment: Segment,
    account: Account,
    transactions: OpenTransactions,
    aborted: list[AbortedTransaction],
    *,
    is_last: bool,
) -> Iterable[BatchHeader]:
    """Every batch, its records looked at; the transactions that a marker here aborts go to `aborted`."""
    walk = Walk(
        segment.handle, segment.file, 0, segment.size, segment.base_offset, account.report, is_last=is_last
    )
    large = segment.size > KERNEL_BYTES
    for step in walk:
        if step.sound:
            count = _decoded(step.data, segment.file) if large else None
            if count is None:
                count = _verify_records(step.data, step.header, segment.file, account)
            if step.header.count == UNKNOWN_COUNT:
                account.records += count
            entry = _decided(step.data, step.header, segment.file, transactions)
            if entry is not None:
                aborted.append(entry)
        yield step.header
    account.read_bytes += walk.read_bytes


def _decided(
    data: bytes, header: BatchHeader, file: str, transactions: OpenTransactions
) -> AbortedTransaction | None:
    if header.transactional and not header.control:
        transactions.begin(header.producer_id, header.base_offset)
    try:
        marker = control_of(data, header, file, position=0)
    except DataError:  # `_verify_records` tells
        return None
    if marker is None or not marker.marker:
        return None
    completed = transactions.end(header.producer_id, header.last_offset, marker)
    return transactions.index_entry(completed) if completed is not None else None


def _decoded(data: bytes, file: str) -> int | None:
    """Count the records that the kernels read in this batch; None if not all: then plain Python finds what
    is wrong."""
    from lastword.records.chunk import chunk_of
    from lastword.records.columns import decode_columns

    try:
        return len(decode_columns(chunk_of(data, file, verify=False), include_control=True))
    except DataError:
        return None


def _verify_records(data: bytes, header: BatchHeader, file: str, account: Account) -> int:
    """Look at every record; how many there are."""
    from lastword.records.formats import read_records

    count = 0
    try:
        last = header.base_offset - 1 if header.count != UNKNOWN_COUNT else -1
        for record in read_records(data, header, file, position=0):
            if record.offset <= last or record.offset > header.last_offset:
                account.add(
                    file,
                    header.position,
                    record.offset,
                    "offsets-fall",
                    f"offset {record.offset} follows {last}",
                    False,
                )
                return count
            last = record.offset
            count += 1
    except DataError as error:
        account.report(bad_records(file, header, error))
    return count
