"""The overwrite trace of a log: for each record, the record that it supersedes.

The cost of cleaning depends only on this trace and the sizes and times of records.

`OverwriteTrace` has one row per record, by offset, and neither keys nor values. `trace_log` reads it from a
log in one pass with bounded memory: a large log is sampled by the hash of its keys (all records of a key or
none), and the sizes of the sample are scaled up. Keys are distinguished by 64 bits of a salted hash: that is
enough for an estimate, and nothing is deleted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lastword.units import NEVER

if TYPE_CHECKING:
    from lastword.records.chunk import Chunk
    from lastword.resolve import SegmentSource
    from lastword.resolve.facts import TransactionOutcomes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Rows = tuple[NDArray[Any], ...]

MOST_ROWS = 1_000_000  # in memory: 33 bytes per row, and about 100 more during the sort
HOT_RATIO = 0.001  # share of all bytes above which a key is hot
_HOT = np.uint64(2**64 - 1)  # one hash for all hot keys; no sample reaches it
_RECORD_BYTES = 8  # a record's own fields, about


@dataclass(frozen=True, slots=True)
class OverwriteTrace:
    """One row per record; all arrays have the same length.

    Attributes:
        size_bytes: int64, its share of the log; in a sample, including the records that it represents.
        previous: int64, row of the previous record of the key; -1: none.
        key: int64, a number for each key, from 0.
        time_ms: int64, ascending.
        tombstone: bool.
        loaded: Rows that exist before the replay begins; appending them is not counted.
        share: Share of the keys that the trace contains.
    """

    size_bytes: Ints
    previous: Ints
    key: Ints
    time_ms: Ints
    tombstone: Bools
    loaded: int = 0
    share: float = 1.0

    def __len__(self) -> int:
        return int(self.size_bytes.size)

    @property
    def superseding(self) -> Ints:
        """The row of the superseding record (int64); `NEVER` for the newest record of a key."""
        superseding = np.full(len(self), NEVER)
        rows = np.flatnonzero(self.previous >= 0)
        superseding[self.previous[rows]] = rows
        return superseding

    def live_bytes(self, delete_retention_ms: int) -> Ints:
        """Return the bytes of the smallest possible log after each number of rows (int64[rows + 1]).

        It holds the newest record of each key, and a tombstone until it is `delete_retention_ms` old.
        """
        change = np.concatenate((self.size_bytes, [0])).astype(np.int64)
        end = np.minimum(self.superseding, len(self))
        rows = np.flatnonzero(self.tombstone)
        gone_ms = self.time_ms[rows] + min(delete_retention_ms, NEVER - int(self.time_ms.max(initial=0)))
        end[rows] = np.minimum(end[rows], np.searchsorted(self.time_ms, gone_ms))
        change -= np.bincount(end, weights=self.size_bytes, minlength=len(self) + 1).astype(np.int64)
        return np.concatenate(([0], np.cumsum(change)[:-1]))


def trace_of_keys(keys: NDArray[Any], **columns: Any) -> OverwriteTrace:
    """Make a trace from the key of each row; `columns` are the other fields of `OverwriteTrace`."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = np.zeros(keys.size, bool)
    again[1:] = ordered[1:] == ordered[:-1]
    previous = np.full(keys.size, -1, np.int64)
    previous[order[again]] = order[np.flatnonzero(again) - 1]
    numbers = np.empty(keys.size, np.int64)
    numbers[order] = np.cumsum(~again) - 1
    return OverwriteTrace(previous=previous, key=numbers, **columns)


def trace_log(
    segments: Sequence[SegmentSource],
    *,
    salt: bytes,
    loaded_below: int = 0,
    most_rows: int = MOST_ROWS,
    outcomes: TransactionOutcomes | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> OverwriteTrace:
    """Read the trace of a log in one pass. Aborted records and records without a key are omitted.

    Args:
        segments: The segments of the log.
        salt: Secret random bytes, which decide which keys a sample contains.
        loaded_below: Records below this offset exist before the replay begins.
        most_rows: With more records, only a share of the keys is kept: 1/2, 1/4, ...
        outcomes: The outcomes of its transactions.
        progress: Receives (bytes done, total bytes) after every chunk.
    """
    sampler = _Sampler(most_rows)
    total, done = sum(segment.size for segment in segments), 0
    for segment in segments:
        for chunk in segment.chunk_reader():
            sampler.take(*_rows(chunk, salt, outcomes))
            done += chunk.size_bytes
            if progress is not None:
                progress(done, total)
    return sampler.trace(loaded_below)


class _Sampler:
    """A sample of the records whose hash is in the first `share` of all hashes, and the bytes of each chunk.

    The share is halved when the sample has more than `most_rows` records.
    """

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self.share = 1.0
        self.rows = 0
        self.parts: list[_Rows] = []
        self.chunks: list[tuple[int, int, float]] = []  # first and last offset, bytes

    def take(self, *columns: NDArray[Any]) -> None:
        """Add the records of a chunk.

        The columns are hashes uint64, offsets int64, times int64, sizes float64, tombstones bool.
        """
        if not columns[0].size:
            return
        self.chunks.append((int(columns[1][0]), int(columns[1][-1]), float(columns[3].sum())))
        chosen = self._chosen(columns)
        self.parts.append(chosen)
        self.rows += chosen[0].size
        while self.rows > self.most_rows and self.share > 2**-40:
            self.share /= 2
            self.parts = [self._chosen(part) for part in self.parts]
            self.rows = sum(part[0].size for part in self.parts)

    def _chosen(self, columns: _Rows) -> _Rows:
        if self.share == 1.0:
            return columns
        mask = columns[0] < np.uint64(2**64 * self.share)
        return tuple(column[mask] for column in columns)

    def trace(self, loaded_below: int) -> OverwriteTrace:
        if not self.parts:
            none = np.zeros(0, np.int64)
            return OverwriteTrace(none, none, none, none, np.zeros(0, bool))
        columns: _Rows = tuple(np.concatenate(segment) for segment in zip(*self.parts, strict=True))
        self.parts = []
        if self.share < 1.0:
            columns = _with_hot_keys(columns, self.share, self.chunks)
        hashes, offsets, times, sizes, tombstones = columns
        return trace_of_keys(
            hashes,
            size_bytes=np.rint(sizes).astype(np.int64),
            time_ms=np.maximum.accumulate(np.maximum(times, 0)),
            tombstone=tombstones,
            loaded=int(np.searchsorted(offsets, loaded_below)),
            share=self.share,
        )


def _with_hot_keys(columns: _Rows, share: float, chunks: list[tuple[int, int, float]]) -> _Rows:
    """Extend a sample to the whole log: sizes are divided by the share, except for hot keys.

    A few hot keys have much of the traffic. A hot key that is in the sample makes the result far too large, a
    hot key that is not in it far too small. So hot keys are removed, and the missing bytes of each chunk are
    assigned to one key: its records are superseded almost immediately, as those of hot keys are.
    """
    hashes, offsets, _, sizes, _ = columns
    _, number = np.unique(hashes, return_inverse=True)
    total = sum(chunk_bytes for _, _, chunk_bytes in chunks)
    cold = np.bincount(number, weights=sizes)[number] <= HOT_RATIO * total
    hashes, offsets, times, sizes, tombstones = (column[cold] for column in columns)
    sizes = sizes / share
    edges = np.searchsorted(offsets, [last for _, last, _ in chunks], "right")
    seen = np.concatenate(([0.0], np.cumsum(sizes)))[edges]
    missing = np.cumsum([chunk_bytes for _, _, chunk_bytes in chunks]) - seen
    grown = np.diff(np.maximum.accumulate(np.maximum(missing, 0)), prepend=0.0)
    row_bytes = max(total / max(sizes.size, 1), 1.0)
    made_offsets, made_sizes = [], []
    for (first, last, _), size in zip(chunks, grown.tolist(), strict=True):
        count = int(np.ceil(size / row_bytes))
        made_offsets.append(np.linspace(first, last, count, dtype=np.int64))
        made_sizes.append(np.full(count, size / max(count, 1)))
    more_offsets, more_sizes = np.concatenate(made_offsets), np.concatenate(made_sizes)
    if not sizes.size:  # only hot keys
        times, nearest = np.zeros(1, np.int64), np.zeros(more_offsets.size, np.int64)
    else:
        nearest = np.minimum(np.searchsorted(offsets, more_offsets), sizes.size - 1)
    offsets = np.concatenate((offsets, more_offsets))
    order = np.argsort(offsets, kind="stable")
    columns = (
        np.concatenate((hashes, np.full(more_sizes.size, _HOT, np.uint64))),
        offsets,
        np.concatenate((times[: hashes.size], times[nearest])),
        np.concatenate((sizes, more_sizes)),
        np.concatenate((tombstones, np.zeros(more_sizes.size, bool))),
    )
    return tuple(column[order] for column in columns)


def _rows(chunk: Chunk, salt: bytes, outcomes: TransactionOutcomes | None) -> _Rows:
    """Return hash, offset, time, size on disk and tombstone of the committed records with a key.

    The bytes of a batch, header included, are divided by the lengths of keys and values.
    """
    from lastword.kernels import table as fields
    from lastword.kernels.hashing import hash_spans, seeds
    from lastword.partition.transactions import BatchOutcome
    from lastword.records.columns import decode_columns
    from lastword.resolve import outcomes_of

    columns = decode_columns(chunk)
    hashes = np.empty(len(columns), np.uint64)
    status = hash_spans(
        chunk.uncompressed, columns.key_position, columns.key_length, *seeds(salt, b"lastword deaths"), hashes
    )
    if status:
        chunk.raise_status(0, status)
    lengths = np.maximum(columns.key_length, 0).astype(np.float64) + np.maximum(columns.value_length, 0)
    lengths += _RECORD_BYTES
    whole = np.bincount(columns.row, weights=lengths, minlength=chunk.rows)
    sizes = lengths * (chunk.table[:, fields.SIZE] / np.maximum(whole, 1))[columns.row]
    counted = (columns.key_length >= 0) & (outcomes_of(chunk, outcomes)[columns.row] != BatchOutcome.ABORTED)
    return (
        hashes[counted],
        columns.offset[counted],
        columns.timestamp[counted],
        sizes[counted],
        columns.value_length[counted] < 0,
    )
