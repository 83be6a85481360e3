"""Check one log: its segments, their batches, records and indexes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from lastword.errors import CorruptFileError, DataError, FileVanishedError
from lastword.partition.transactions import OpenTransactions, control_of
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader
from lastword.records.formats import UNKNOWN_COUNT, read_records
from lastword.records.internal import METADATA, UndecodableError, UnknownTypeError, decode, is_internal
from lastword.segment import names
from lastword.segment.indexes import (
    TXN_ENTRY,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    check_aborted,
    decode_aborted,
)
from lastword.segment.segment import Segment
from lastword.tools.findings import (
    INDEX_CODES,
    BatchPositions,
    EpochRun,
    Findings,
    LenientWalk,
    Problem,
    bad_records,
)

NO_LEADER_EPOCH = -1
KERNEL_BYTES = 4 << 20  # above this size, loading the kernels costs less than decoding records in Python


def verify_log(view: PartitionView, quick: bool, findings: Findings, advance: Callable[[int], None]) -> bool:
    """Check the segments of a view with their indexes, except those in `findings.valid`.

    Args:
        view: The partition.
        quick: Read headers and indexes only.
        findings: Gets counts and problems.
        advance: Called with the bytes of each segment.

    Returns:
        False if a file vanished: the log has new segments, which must be checked too.
    """
    segments = list(view.segments)
    next_offset = 0
    complete = True
    transactions = OpenTransactions()
    for place, segment in enumerate(segments):
        if segment.base_offset < next_offset:
            text = f"the segment before it ends at {next_offset - 1}"
            findings.add(segment.file, None, segment.base_offset, "offsets-fall", text)
        following = segments[place + 1].base_offset if place + 1 < len(segments) else None
        identity = segment.id, segment.mtime_ms
        if identity in findings.valid:
            transactions = OpenTransactions()
            next_offset = following or next_offset
            continue
        before = len(findings.problems)
        try:
            next_offset = _verify_segment(view, segment, following, quick, findings, transactions)
            # A segment that ends inside a transaction is checked again: the next segment needs its state.
            if len(findings.problems) == before and not transactions:
                findings.valid.add(identity)
        except FileVanishedError:
            complete = False
            next_offset = following or next_offset
        advance(segment.size)
    return complete


def _verify_segment(
    view: PartitionView,
    segment: Segment,
    following: int | None,
    quick: bool,
    findings: Findings,
    transactions: OpenTransactions,
) -> int:
    """Check a segment and its indexes, and return the offset after its last offset.

    `transactions`: the open transactions at its start; the call updates them to its end.
    """
    batches = BatchPositions()
    epochs: list[EpochRun] = []
    findings.epochs[segment.id, segment.mtime_ms] = epochs
    aborted: list[AbortedTransaction] = []
    next_offset = segment.base_offset
    before = len(findings.problems)
    walked = (
        _quick_headers(segment, findings)
        if quick
        else _valid_headers(view.topic, segment, findings, transactions, aborted, is_last=following is None)
    )
    for header in walked:
        if header.base_offset < next_offset or header.last_offset < header.base_offset:
            text = f"offsets {header.base_offset}-{header.last_offset} do not follow {next_offset - 1}"
            findings.add(segment.file, header.position, header.base_offset, "offsets-fall", text)
        if following is not None and header.last_offset >= following:
            text = f"offset {header.last_offset} belongs to the next segment, which begins with {following}"
            findings.add(segment.file, header.position, header.base_offset, "offsets-fall", text)
        next_offset = max(next_offset, header.last_offset + 1)
        findings.batches += 1
        findings.records += max(header.count, 0)
        batches.add(header)
        if header.magic == 2 and header.leader_epoch != NO_LEADER_EPOCH:
            first = header.base_offset
            if epochs and epochs[-1].epoch == header.leader_epoch:
                first = epochs.pop().first
            epochs.append(EpochRun(first, header.base_offset, header.leader_epoch))
    # Indexes are checked only without damage, because the positions after it are unknown, and outside a swap,
    # during which they have other names.
    if len(findings.problems) == before and segment.file.endswith(names.LOG):
        _verify_offset_index(segment, batches, findings)
        _verify_time_index(segment, batches, findings)
        _verify_txn_index(segment, aborted, findings, lambda offset: _batch_at(view, offset))
    return next_offset


def _batch_at(view: PartitionView, offset: int) -> BatchHeader | None:
    """Return the batch that contains an offset; None if the log has no such batch."""
    at = view.segment_set.floor(offset)
    if at < 0 or not view.log_start <= offset < view.log_end:
        return None
    segment = view.segments[at]
    for header in segment.headers(segment.position_of(offset)):
        return header if header.base_offset <= offset <= header.last_offset else None
    return None


def _quick_headers(segment: Segment, findings: Findings) -> Iterable[BatchHeader]:
    try:
        for header in segment.headers():
            findings.read_bytes += header.size if header.size < 4096 else 4096
            yield header
    except DataError as error:
        findings.add_error(error, segment.file)


def _valid_headers(
    topic: str,
    segment: Segment,
    findings: Findings,
    transactions: OpenTransactions,
    aborted: list[AbortedTransaction],
    *,
    is_last: bool,
) -> Iterable[BatchHeader]:
    """Yield every batch after a check of its records; add transactions that a marker aborts to `aborted`."""
    walk = LenientWalk(
        segment.handle, segment.file, segment.size, segment.base_offset, findings.report, is_last=is_last
    )
    large = segment.size > KERNEL_BYTES
    is_coordinated = topic != METADATA and is_internal(topic)
    for step in walk:
        if step.valid:
            count = _decoded(step.data, segment.file) if large else None
            if count is None:
                count = _verify_records(step.data, step.header, segment.file, findings)
            if step.header.count == UNKNOWN_COUNT:
                findings.records += count
            if is_coordinated and not step.header.control:
                _verify_coordinated(topic, step.data, step.header, segment.file, findings)
            entry = _decided(step.data, step.header, segment.file, transactions)
            if entry is not None:
                aborted.append(entry)
        yield step.header
    findings.read_bytes += walk.read_bytes


def _verify_coordinated(topic: str, data: bytes, header: BatchHeader, file: str, findings: Findings) -> None:
    """Check that a coordinator can read each record of its topic. Unknown types are of a newer Kafka."""
    with suppress(DataError):  # `_verify_records` reports it
        for record in read_records(data, header, file, position=0):
            try:
                decode(topic, record.key, record.value)
            except UnknownTypeError:
                continue
            except UndecodableError as error:
                text = f"a coordinator cannot read this record, and does not serve the partition: {error}"
                at, remedy = header.position, "serve the directory with the Kafka that wrote the record"
                problem = Problem(file, at, record.offset, "undecodable-record", text, False, remedy)
                findings.report(problem)


def _decided(
    data: bytes, header: BatchHeader, file: str, transactions: OpenTransactions
) -> AbortedTransaction | None:
    try:
        marker = control_of(data, header, file, position=0)
    except DataError:  # `_verify_records` reports it
        return None
    return transactions.update(header, marker)


def _decoded(data: bytes, file: str) -> int | None:
    """Count the records of a batch with the kernels; None if that fails.

    Python then decodes the batch and reports the problem.
    """
    from lastword.records.chunk import chunk_of
    from lastword.records.columns import decode_columns

    try:
        return len(decode_columns(chunk_of(data, file, verify=False), include_control=True))
    except DataError:
        return None


def _verify_records(data: bytes, header: BatchHeader, file: str, findings: Findings) -> int:
    """Check every record of a batch and return their number."""
    count = 0
    try:
        last = header.base_offset - 1 if header.count != UNKNOWN_COUNT else -1
        for record in read_records(data, header, file, position=0):
            if record.offset <= last or record.offset > header.last_offset:
                text = f"offset {record.offset} follows {last}"
                findings.add(file, header.position, record.offset, "offsets-fall", text)
                return count
            last = record.offset
            count += 1
    except DataError as error:
        findings.report(bad_records(file, header, error))
    return count


# ---------------------------------------------------------------- indexes


def _stored_bytes(segment: Segment) -> int:
    """Return the size of the log now: a writer may have appended since it was listed."""
    facts = segment.stored.facts()
    return segment.size if facts is None else facts.id.size


def _needed_index(segment: Segment, extension: str, findings: Findings) -> tuple[str, bytes | None]:
    """Return path and bytes of an index that every segment with batches has."""
    path, data = segment.stored.path(extension), segment.stored.read(extension)
    if data is None and segment.size:
        findings.add(path, None, None, "missing-index", "the index is missing", True)
    return path, data


def _verify_offset_index(segment: Segment, batches: BatchPositions, findings: Findings) -> None:
    path, data = _needed_index(segment, names.INDEX, findings)
    if data is None:
        return
    index = OffsetIndex(data, segment.base_offset, segment.size)
    for place, entry in enumerate(index.entries()):
        if not batches.indexed(entry.offset, entry.position):
            text = f"position {entry.position} has no batch that ends with offset {entry.offset}"
            findings.add(path, 8 * place, entry.offset, INDEX_CODES[names.INDEX], text, True)
            return
    if index.damaged and segment.size == _stored_bytes(segment):
        findings.add(
            path,
            index.size_bytes,
            None,
            INDEX_CODES[names.INDEX],
            "the entries from here on are invalid",
            True,
        )


def _verify_time_index(segment: Segment, batches: BatchPositions, findings: Findings) -> None:
    path, data = _needed_index(segment, names.TIME_INDEX, findings)
    if data is None:
        return
    index = TimeIndex(data, segment.base_offset)
    last_offsets = list(batches.largest)
    for place, entry in enumerate(index.entries()):
        at = bisect_left(last_offsets, entry.offset)
        largest = batches.largest[last_offsets[at]] if at < len(last_offsets) else None
        if largest is None and segment.size != _stored_bytes(segment):
            continue  # appended after the log was listed
        if largest != entry.timestamp:
            text = f"timestamp {entry.timestamp} is not the largest up to offset {entry.offset}"
            findings.add(path, 12 * place, entry.offset, INDEX_CODES[names.TIME_INDEX], text, True)
            return
    if index.damaged:
        text = "the entries from here on are invalid"
        findings.add(path, index.size_bytes, None, INDEX_CODES[names.TIME_INDEX], text, True)


def _verify_txn_index(
    segment: Segment,
    aborted: Sequence[AbortedTransaction],
    findings: Findings,
    batch_at: Callable[[int], BatchHeader | None],
) -> None:
    """Compare the index with the transactions that the markers of this segment abort.

    A cleaning removes batches and keeps entries. So an entry may start at a removed offset, below the
    remaining records of its transaction, and may remain after its marker and data are removed. An offset that
    is still in the log must match the entry.

    Args:
        segment: The segment.
        aborted: The transactions aborted by the markers of this segment.
        findings: Gets the problems.
        batch_at: Returns the batch of the log that contains an offset.
    """
    path, data = segment.stored.path(names.TXN_INDEX), segment.stored.read(names.TXN_INDEX)
    entries: list[AbortedTransaction] = []
    if data is not None:
        try:
            entries = decode_aborted(data, path)
            check_aborted(entries, segment.base_offset, path)
        except CorruptFileError as error:
            findings.add(
                path, error.position, error.offset, INDEX_CODES[names.TXN_INDEX], error.message, True
            )
            return
    known = {(entry.producer_id, entry.last_offset) for entry in entries}
    for transaction in aborted:
        if (transaction.producer_id, transaction.last_offset) not in known:
            text = (
                f"no entry for the transaction of producer {transaction.producer_id} that begins with offset "
                f"{transaction.first_offset} and is aborted at {transaction.last_offset}"
            )
            findings.add(path, None, transaction.last_offset, INDEX_CODES[names.TXN_INDEX], text, True)
            return
    by_marker = {(each.producer_id, each.last_offset): each for each in aborted}
    for place, entry in enumerate(entries):
        known_end = by_marker.get((entry.producer_id, entry.last_offset))
        why = _contradiction(entry, known_end, segment, batch_at)
        if why is not None:
            findings.add(
                path, place * TXN_ENTRY.size, entry.last_offset, INDEX_CODES[names.TXN_INDEX], why, True
            )
            return


def _contradiction(
    entry: AbortedTransaction,
    transaction: AbortedTransaction | None,
    segment: Segment,
    batch_at: Callable[[int], BatchHeader | None],
) -> str | None:
    """Return how the log contradicts an entry, or None. `transaction`: the transaction of the marker."""
    if entry.last_offset >= segment.next_offset and not segment.active:
        return f"offset {entry.last_offset} is not in this segment"
    if transaction is None:
        marker = batch_at(entry.last_offset)
        if marker is None or (marker.control and marker.producer_id == entry.producer_id):
            return None
        if not marker.control and not _is_dense(marker):
            return None
        return f"no transaction of producer {entry.producer_id} is aborted at {entry.last_offset}"
    if entry.first_offset != transaction.first_offset:
        holder = batch_at(entry.first_offset)
        if entry.first_offset > transaction.first_offset or (holder is not None and _is_dense(holder)):
            return (
                f"the transaction that is aborted at {entry.last_offset} begins with offset "
                f"{transaction.first_offset}, not {entry.first_offset}"
            )
    stable = entry.last_stable_offset
    if stable != transaction.last_stable_offset:
        holder = batch_at(stable)
        if stable > transaction.last_stable_offset or (holder is not None and _is_dense(holder)):
            return (
                f"at the marker {entry.last_offset} the last stable offset was "
                f"{transaction.last_stable_offset}, not {stable}"
            )
    return None


def _is_dense(header: BatchHeader) -> bool:
    """Return whether the batch has a record at each of its offsets."""
    return header.count == header.last_offset - header.base_offset + 1
