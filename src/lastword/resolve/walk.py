"""Chunks of a log into the map, the bitmaps and the tally: the loop behind every way to resolve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import offset_map as loops
from lastword.kernels import piece
from lastword.kernels import table as fields
from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.resolve.bitmaps import PageStore
from lastword.resolve.facts import Fates, Resolution, SegmentSource, fates_of
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.tally import Tally

PIECE = 4096
LAST_HASH = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about a record, other than newer ones of its key.

    decided       a transaction whose end is not known is an error
    keyless_go    records without a key are dead
    now_ms        tombstones below `due_below` whose batch has a delete horizon at or before it are dead
    keep_copies   aborted records count as copies of their keys
    last_hash     only keys up to this hash are looked at
    """

    decided: bool = False
    keyless_go: bool = False
    now_ms: int = 0
    due_below: int = 0
    keep_copies: bool = False
    last_hash: int = LAST_HASH


class Piece:
    """Records made ready for the map, and where in their chunk the next ones begin. Used again and again."""

    def __init__(self, records: int = PIECE) -> None:
        self.cursor = np.zeros(piece.CURSOR_FIELDS, np.int64)
        self.make(records)

    def make(self, records: int) -> None:
        self.hashes = np.empty((2, records), np.uint64)
        self.spans = np.empty((piece.SPAN_FIELDS, records), np.int64)
        self.pages = np.empty(records, np.int64)
        self.homes = np.empty(records, np.int64)

    def start(self, rules: Rules, *, first_pass: bool, old_due: bool) -> None:
        """At the beginning of a chunk."""
        self.cursor[piece.ROW] = 0
        self.cursor[piece.ORDINAL] = 0
        self.cursor[piece.KEYLESS_GO] = rules.keyless_go
        self.cursor[piece.NOW] = rules.now_ms
        self.cursor[piece.OLD_DUE] = old_due
        self.cursor[piece.DUE_BELOW] = rules.due_below
        self.cursor[piece.FIRST_PASS] = first_pass
        self.cursor[piece.KEEP_COPIES] = rules.keep_copies
        self.cursor[piece.SAMPLED] = rules.last_hash != LAST_HASH

    def fill(self, chunk: Chunk, fates: NDArray[np.uint8], words: NDArray[np.uint64]) -> bool:
        """The next records; False when there are none. Raises CorruptBatchError."""
        if self.cursor[piece.ROW] >= chunk.rows:
            return False
        status = piece.fill_piece(
            chunk.plain,
            chunk.table,
            fates,
            chunk.rows,
            self.cursor,
            words,
            self.hashes,
            self.spans,
            self.pages,
        )
        if status != kernels.OK:
            chunk.raise_status(int(self.cursor[piece.ROW]), status)
        return True


class Walk:
    """The map, the bits and the tally of a log, while its chunks are taken in order.

    The map is made for the first chunk, whose keys say how many will fit; `most_records(chunk)` says how
    many may come. `make_room(chunk)` is asked when the map is full, and must make room or raise.
    """

    def __init__(self, map_bytes: int, salt: bytes, digest_seed: int, rules: Rules) -> None:
        self.map_bytes = map_bytes
        self.salt = salt
        self.digest_seed = digest_seed
        self.rules = rules
        self.tally = Tally()
        self.state = np.zeros(loops.STATE_FIELDS, np.int64)
        self.store = PageStore(self.state)
        self.map: OffsetMap | None = None
        self.spill: Callable[[int], NDArray[np.uint8]] | None = None
        self._piece = Piece()

    def source(
        self,
        source: SegmentSource,
        segment: int,
        fates: Fates | None,
        most_records: Callable[[Chunk], int],
        make_room: Callable[[Chunk], None],
        *,
        first_pass: bool = True,
        old_due: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Chunk]:
        """Take all chunks of a segment; each is given out when it has been taken."""
        for chunk in source.chunk_reader(chunk_bytes=chunk_bytes, verify=True):
            if first_pass:
                self.tally.count(chunk, segment)
            found = fates_of(chunk, fates, decided=self.rules.decided)
            self._piece.start(self.rules, first_pass=first_pass, old_due=old_due)
            offset_map = self.map or self._first_map(chunk, most_records(chunk))
            while self._piece.fill(chunk, found, offset_map.words):
                self.settle(self._piece, chunk, segment, make_room)
            yield chunk

    def settle(self, made: Piece, chunk: Chunk, segment: int, make_room: Callable[[Chunk], None]) -> None:
        """Put a piece of `chunk` into the map."""
        offset_map = self.map
        assert offset_map is not None
        filled = int(made.cursor[piece.FILLED])
        self.store.register(made.pages[: int(made.cursor[piece.PAGES_MET])], segment)
        self.state[loops.NEXT] = 0
        while True:
            status = loops.settle_piece(
                chunk.plain,
                made.hashes,
                made.spans,
                filled,
                made.homes,
                segment,
                offset_map.arena,
                offset_map.slots,
                self.state,
                offset_map.words,
                *self.store.arrays,
                self.tally.bases,
                self.tally.stats,
                self.tally.digests,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                offset = made.spans[piece.OFFSET, int(self.state[loops.NEXT])]
                row = int(np.searchsorted(chunk.table[:, fields.LAST_OFFSET], offset))
                chunk.raise_status(row, status)
            make_room(chunk)

    def _first_map(self, chunk: Chunk, most_records: int) -> OffsetMap:
        """With slots for the records that may come, if the budget holds them."""
        from lastword.records.columns import decode_columns

        lengths = decode_columns(chunk).key_length
        keyed = lengths[lengths >= 0]
        return self.make_map(most_records, float(keyed.mean()) if keyed.size else 24.0)

    def make_map(self, most_records: int, key_bytes: float) -> OffsetMap:
        self.map = OffsetMap(
            self.map_bytes,
            self.salt,
            self.digest_seed,
            most_records=most_records,
            key_bytes=key_bytes,
            state=self.state,
            last_hash=self.rules.last_hash,
            spill=self.spill,
        )
        return self.map

    @property
    def marks(self) -> tuple[np.ndarray, ...]:
        """What is taken back when keys leave the map: (page_ids, page_segments, bases, stats, digests)."""
        return (
            self.store.page_ids,
            self.store.page_segments,
            self.tally.bases,
            self.tally.stats,
            self.tally.digests,
        )

    def resolution(self, passes: int, distinct_keys: int, seconds: float) -> Resolution:
        """All that was found so far, frozen."""
        used_bytes = probes = 0
        ratio = 0.0
        if self.map is not None:
            self.map.note_peak()
            probes = self.map.probes
            used_bytes = self.map.peak_bytes
            ratio = min(self.map.peak_used / max(self.map.capacity(), 1), 1.0)
        return Resolution(
            segments=self.tally.facts(),
            dead=self.store.finish(),
            passes=passes,
            distinct_keys=distinct_keys,
            map_bytes=self.map_bytes,
            map_bytes_used=used_bytes,
            map_used_ratio=ratio,
            probes=probes,
            records=int(self.tally.records.sum()),
            keyless=int(self.tally.stats[:, loops.KEYLESS].sum()),
            digest_seed=self.digest_seed,
            seconds=seconds,
        )


def records_at_most(sources: Sequence[SegmentSource], chunk: Chunk) -> int:
    """Two bounds on the number of records in `sources`, whose first chunk is `chunk`: offsets, and bytes."""
    offsets = max(sources[-1].next_offset - sources[0].base_offset, 1)
    counted = int(chunk.table[chunk.data_rows(), fields.COUNT].sum())
    by_size = 2 * counted * sum(source.size for source in sources) // max(chunk.size_bytes, 1) + 64
    return min(offsets, by_size)
