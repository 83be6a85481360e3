"""A segment under rewrite that tells the map what it loses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.records.chunk import Chunk, ChunkReader
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.resolve import DeadBitmaps
    from lastword.resolve.running import RunningResolution


class Watched(Segment):
    """The same file, and the same open handle. Each chunk that is read goes through `running.dropping`."""

    def __init__(self, segment: Segment, running: RunningResolution, dead: DeadBitmaps) -> None:
        self.__dict__.update(segment.__dict__)
        self._running = running
        self._dead = dead

    def chunk_reader(self, *args: Any, **options: Any) -> Iterator[Chunk]:
        options.pop("unwanted", None)  # of a dead record the key is wanted: it has one copy less
        reader = super().chunk_reader(*args, **options)
        assert isinstance(reader, ChunkReader)
        reader.show_to(partial(self._running.dropping, dead=self._dead))
        return reader
