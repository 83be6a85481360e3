"""The newest records of a log by one reading, from its newest chunk to its oldest.

A record whose key was met is superseded, another one is the newest of its key: so it is decoded while its
chunk is in the processor's cache, and no chunk is read or decompressed twice. The bytes of keys are compared,
because no certificate follows a read.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from lastword import kernels
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.records.chunk import Chunk
from lastword.records.columns import RecordColumns, decode_survivors
from lastword.resolve.facts import Rules, TransactionOutcomes
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.parts import OldestFirstNeeded, Part, PartReader, PartSource

_KEY_BYTES = 24.0
_RECORD_BYTES = 16
_RECORDS_OF_A_KEY = 4  # the map begins with slots for so many keys, and grows
_GROWTH = 2.0


class NewestFirst:
    """The newest record of each key, chunk by chunk, the newest chunk first.

    Args:
        sources: Segments, ascending.
        map_bytes: Memory of the keys.
        salt: Secret random bytes.
        outcomes: Of the transactions in all `sources`. None is undecided.
        threads: With 2, a second thread prepares chunks.

    Attributes:
        reached: (Index of a source, position in its file): all chunks from there on were yielded.
    """

    def __init__(
        self,
        sources: Sequence[PartSource],
        map_bytes: int,
        salt: bytes,
        outcomes: TransactionOutcomes | None,
        threads: int = 1,
    ) -> None:
        self._sources = sources
        self._map_bytes = map_bytes
        self._salt = salt
        self._outcomes = outcomes
        self._threads = threads
        self.reached = len(sources), 0

    def read(self, first_offset: int, *, tombstones: bool) -> Generator[tuple[Chunk, RecordColumns]]:
        """Yield each chunk with its newest records; both are valid until the next one. Close the generator.

        Args:
            first_offset: Records below it are left out.
            tombstones: Also records without a value.

        Raises:
            OldestFirstNeeded: The keys do not fit the memory, or the log cannot be read in this way.
            DataError: The log is damaged.
        """
        if not self._sources:
            return
        key_map = self._new_map()
        reader = PartReader(self._sources, Rules(decided=True), self._outcomes, key_map.words)
        with closing(reader.parts(self._threads)) as parts:
            for part in parts:
                filled = self._take(part, key_map)
                chunk = part.chunk
                columns = decode_survivors(
                    chunk, part.filler.arrays, filled, first_offset, tombstones=tombstones
                )
                self.reached = part.segment, int(chunk.table[0, fields.FILE_POSITION])
                yield chunk, columns

    def _new_map(self) -> OffsetMap:
        offsets = self._sources[-1].next_offset - self._sources[0].base_offset
        records = min(offsets, sum(source.size for source in self._sources) // _RECORD_BYTES)
        return OffsetMap(
            self._map_bytes, self._salt, 0, max_records=records // _RECORDS_OF_A_KEY, key_bytes=_KEY_BYTES
        )

    def _take(self, part: Part, key_map: OffsetMap) -> int:
        """Flag the records of a chunk that are not live; return the number of its records."""
        batch, state = part.filler.arrays, key_map.state
        state[loops.NEXT] = filled = int(part.filler.cursor[key_batch.FILLED])
        while loops.take_newest(part.chunk.uncompressed, batch, key_map.arrays) != kernels.OK:
            if not key_map.make_room(_GROWTH):
                raise OldestFirstNeeded(
                    f"a map of {self._map_bytes} bytes is full with {key_map.distinct_keys} keys"
                )
        return filled
