"""Chunks of a log into the map, the bitmaps and the tally: the loop behind every way to resolve."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.key_batch import SIZE_MASK
from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.records.pipeline import in_slots, prepared, second_thread
from lastword.resolve.bitmaps import PageStore
from lastword.resolve.facts import Fates, Resolution, SegmentSource, fates_of
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.pieces import Piece, Ready
from lastword.resolve.rules import Rules
from lastword.resolve.tally import Tally


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

    def take(
        self,
        sources: Sequence[SegmentSource],
        fates: Fates | None,
        most_records: Callable[[Chunk], int],
        make_room: Callable[[Chunk], None],
        *,
        first_segment: int = 0,
        first_pass: bool = True,
        old_due: Sequence[bool] = (),
        chunk_bytes: int = CHUNK_BYTES,
        threads: int = 1,
    ) -> Generator[Chunk]:
        """Take all chunks of some segments; each is given out when it has been taken. To be closed: another
        thread may be at work for it.
        """

        def read(slots: int) -> Iterator[Ready]:
            pieces = cycle([Piece() for _ in range(slots)])
            for segment, source in enumerate(sources, first_segment):
                reader = source.chunk_reader(chunk_bytes=chunk_bytes, verify=True)
                for chunk in in_slots(reader, slots):
                    yield begun(segment, chunk, next(pieces))

        def begun(segment: int, chunk: Chunk, made: Piece) -> Ready:
            if first_pass:
                self.tally.count(chunk, segment)
            found = fates_of(chunk, fates, decided=self.rules.decided)
            due = bool(old_due) and bool(old_due[segment - first_segment])
            made.start(self.rules, first_pass=first_pass, old_due=due)
            if self.map is None:
                chunk.decompress()
                self._first_map(chunk, most_records(chunk))
            assert self.map is not None
            return Ready(segment, chunk, made, found, self.map.words)

        def prepare(ready: Ready) -> None:
            if second is not None:
                ready.piece.room_for(ready.chunk)
            ready.begin()

        with (
            second_thread("lastword-resolve", threads) as second,
            closing(prepared(read, prepare, second)) as chunks,
        ):
            for ready in chunks:
                while ready.filled():
                    self.settle(ready.piece, ready.chunk, ready.segment, make_room)
                yield ready.chunk

    def settle(
        self, made: Piece, chunk: Chunk, segment: int, make_room: Callable[[Chunk], None], *, first: int = 0
    ) -> None:
        """Put a piece of `chunk` into the map, from its `first` record on."""
        offset_map = self.map
        assert offset_map is not None
        filled = int(made.cursor[key_batch.FILLED])
        self.store.register(made.arrays.page_ids[: int(made.cursor[key_batch.PAGES_MET])], segment)
        if self.rules.keep_copies:
            self.tally.weigh(
                segment, int((made.arrays.spans[key_batch.SIZE, first:filled] & SIZE_MASK).sum())
            )
        self.state[loops.NEXT] = first
        while True:
            status = loops.insert_keys(
                chunk.uncompressed,
                made.arrays,
                filled,
                segment,
                offset_map.arrays,
                self.store.arrays,
                self.tally.arrays,
            )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                offset = made.arrays.spans[key_batch.OFFSET, int(self.state[loops.NEXT])]
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
