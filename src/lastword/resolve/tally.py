"""What is counted for each segment while a log is resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.offset_map import NO_OFFSET
from lastword.records.chunk import Chunk
from lastword.resolve.facts import SegmentFacts, SegmentSource
from lastword.wire import INT64_MAX

_COLUMNS = (
    "bases",
    "next_offsets",
    "sizes",
    "weights",
    "worths",
    "ends",
    "records",
    "control_batches",
    "control_bytes",
)


class Tally:
    """One row a segment. `bases`, `stats` and `digests` are what the kernels fill.

    `weights`: the sum of the sizes that the map knows of a segment's records, dead and live, where it is kept
    (`weigh`). After a rewrite the map still knows the old sizes; `worths` is what they amount to in the new
    file, and bytes are scaled by it. A sum, not what is left of a file's size: fractions of bytes and markers
    that no record accounts for would add up from rewrite to rewrite.
    """

    def __init__(self) -> None:
        empty = np.empty(0, np.int64)
        self.bases = self.next_offsets = self.sizes = self.weights = self.worths = empty
        self.ends = self.records = self.control_batches = self.control_bytes = empty
        self.stats = np.empty((0, loops.STAT_FIELDS), np.int64)
        self.digests = np.empty(0, np.uint64)
        self.producers: list[dict[int, int]] = []

    def __len__(self) -> int:
        return int(self.bases.size)

    @property
    def arrays(self) -> loops.CountArrays:
        """The counts that kernels keep; valid until rows are added or merged."""
        return loops.CountArrays(self.bases, self.stats, self.digests)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        row = 8 * (len(_COLUMNS) + loops.STAT_FIELDS + 1)
        return row * len(self) + 100 * sum(map(len, self.producers))

    def add(self, sources: Sequence[SegmentSource]) -> None:
        """Rows for more segments, above all that are there."""

        def more(name: str, values: list[int]) -> None:
            setattr(self, name, np.append(getattr(self, name), np.array(values, np.int64)))

        sizes = [source.size for source in sources]
        more("bases", [source.base_offset for source in sources])
        more("ends", [source.base_offset for source in sources])
        more("next_offsets", [source.next_offset for source in sources])
        more("sizes", sizes)
        for name in ("weights", "worths", "records", "control_batches", "control_bytes"):
            more(name, [0] * len(sources))
        stats = np.zeros((len(sources), loops.STAT_FIELDS), np.int64)
        stats[:, loops.LOWEST_SUPERSEDING] = NO_OFFSET
        self.stats = np.concatenate([self.stats, stats])
        self.digests = np.append(self.digests, np.zeros(len(sources), np.uint64))
        self.producers += [{} for _ in sources]

    def count(self, chunk: Chunk, segment: int) -> None:
        """What does not depend on keys; and no segment may hold offsets of its neighbours."""
        after = max(int(self.bases[segment]), int(self.ends[segment]))
        if segment:
            after = max(after, int(self.ends[segment - 1]))
        limit = self.bases[segment + 1] if segment + 1 < self.bases.size else INT64_MAX
        if chunk.table[0, fields.BASE_OFFSET] < after:
            chunk.raise_status(0, kernels.BAD_OFFSET)
        if chunk.table[-1, fields.LAST_OFFSET] >= limit:
            chunk.raise_status(chunk.rows - 1, kernels.BAD_OFFSET)
        self.ends[segment] = chunk.next_offset
        data = chunk.data_rows()
        self.records[segment] += chunk.table[data, fields.COUNT].sum()
        self.control_batches[segment] += chunk.rows - int(data.sum())
        self.control_bytes[segment] += chunk.table[~data, fields.SIZE].sum()
        known = data & (chunk.table[:, fields.PRODUCER_ID] >= 0)
        if known.any():
            producers, last = (
                chunk.table[known, column].tolist() for column in (fields.PRODUCER_ID, fields.LAST_OFFSET)
            )
            self.producers[segment].update(zip(producers, last, strict=True))

    def weigh(self, segment: int, size_bytes: int) -> None:
        """The map has taken in records of so many bytes, as it knows them."""
        self.weights[segment] += size_bytes
        self.worths[segment] += size_bytes

    def merge(self, first: int, last: int, size_bytes: int, next_offset: int, *, share: float = 1.0) -> None:
        """Segments `first` to `last` became one file without their dead records. `share`: of the keys that
        are in the map."""
        part = slice(first, last + 1)
        live = self.stats[part].sum(axis=0)
        live[[loops.DEAD_RECORDS, loops.DEAD_BYTES, loops.DUE_TOMBSTONES, loops.KEYLESS]] = 0
        live[loops.ABORTED_RECORDS] = 0
        live[loops.LOWEST_SUPERSEDING] = NO_OFFSET
        weight = (self.weights[part] - self.stats[part, loops.DEAD_BYTES]).sum()
        # What the file has beyond the sizes that are known may be markers, as far as there were any.
        markers = min(self.control_bytes[part].sum(), max(size_bytes - weight / share, 0))
        self.weights[first], self.worths[first] = weight, (size_bytes - markers) * share
        self.control_bytes[first] = markers
        self.records[first] = (self.records[part] - self.stats[part, loops.DEAD_RECORDS]).sum()
        self.control_batches[first] = self.control_batches[part].sum()
        self.digests[first] = self.digests[part].sum()
        self.stats[first] = live
        self.sizes[first] = size_bytes
        self.next_offsets[first] = next_offset
        self.ends[first] = self.ends[part].max()
        producers: dict[int, int] = {}
        for one in self.producers[part]:
            producers.update(one)
        self.producers[part] = [producers]
        for name in (*_COLUMNS, "stats", "digests"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[: first + 1], old[last + 1 :]]))

    @property
    def is_scaled(self) -> bool:
        """Was any segment rewritten?"""
        return bool((self.weights != self.worths).any())

    def scaled(self, segments: NDArray[np.int64], size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sizes as the map knows them, in bytes of the files that the records lie in now."""
        weights, worths = self.weights[segments], self.worths[segments]
        changed = weights != worths
        found = size_bytes.copy()
        ratio = worths[changed] / np.maximum(weights[changed], 1)
        found[changed] = (size_bytes[changed] * ratio).astype(np.int64)
        return found

    def facts(self) -> tuple[SegmentFacts, ...]:
        dead_bytes = self.scaled(np.arange(len(self)), self.stats[:, loops.DEAD_BYTES])
        dead_bytes = np.clip(dead_bytes, 0, self.sizes)
        columns = (self.bases, self.next_offsets, self.sizes, self.records, dead_bytes, self.digests)
        # Plain lists: single numbers out of NumPy arrays take ten times as long.
        plain = (column.tolist() for column in (*columns, self.control_batches, self.stats))
        rows = zip(*plain, self.producers, strict=True)
        return tuple(
            SegmentFacts(
                base_offset=base_offset,
                next_offset=next_offset,
                size_bytes=size_bytes,
                records=records,
                dead_records=stats[loops.DEAD_RECORDS],
                live_bytes=size_bytes - dead,
                dead_bytes=dead,
                live_digest=digest,
                tombstones=stats[loops.TOMBSTONES],
                tombstones_without_horizon=stats[loops.TOMBSTONES_WITHOUT_HORIZON],
                due_tombstones=stats[loops.DUE_TOMBSTONES],
                keyless=stats[loops.KEYLESS],
                control_batches=control_batches,
                last_of_producers=tuple(producers.items()),
                aborted_records=stats[loops.ABORTED_RECORDS],
            )
            for (
                base_offset,
                next_offset,
                size_bytes,
                records,
                dead,
                digest,
                control_batches,
                stats,
                producers,
            ) in rows
        )

    def to_parts(self) -> dict[str, Any]:
        pairs = [(i, *pair) for i, one in enumerate(self.producers) for pair in one.items()]
        parts = {name: getattr(self, name).copy() for name in (*_COLUMNS, "stats", "digests")}
        return parts | {"producers": np.array(pairs, np.int64).reshape(-1, 3)}

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> Tally:
        made = cls()
        for name in (*_COLUMNS, "stats", "digests"):
            kind = np.uint64 if name == "digests" else np.int64
            setattr(made, name, np.array(parts[name], kind))
        rows = len(made)
        if made.stats.shape != (rows, loops.STAT_FIELDS) or any(
            getattr(made, name).shape != (rows,) for name in (*_COLUMNS, "digests")
        ):
            raise ValueError("the arrays of a tally have different lengths")
        made.producers = [{} for _ in range(rows)]
        for segment, producer, offset in np.asarray(parts["producers"], np.int64).tolist():
            made.producers[segment][producer] = offset
        return made
