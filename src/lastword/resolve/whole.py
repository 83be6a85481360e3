"""Resolve a whole log in the way that its keys allow: with one map, in passes, or in shards."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lastword.errors import CorruptFileError, DataError, DiskFullError, LastwordError
from lastword.files import DEFAULT
from lastword.files.scratch import Scratch
from lastword.resolve.facts import MapLoad, Resolution, Rules, SegmentSource, TransactionOutcomes
from lastword.resolve.hash_map import LEAST_MAP_BYTES, HashesUnsure, HashResolver, PartSource
from lastword.resolve.offset_map import spill_in
from lastword.resolve.resolver import Resolver
from lastword.resolve.shards import live_keys, resolve_divided
from lastword.resolve.survivors import ScratchFile, Survivors
from lastword.units import NEVER, format_bytes
from lastword.values import Value

LOGGER = logging.getLogger("lastword.resolve")

DIVIDE_FROM_BYTES = 4 << 20
"""A smaller log is never divided: a scratch file costs more there than passes over the page cache."""

HASHES_FROM_BYTES = 8 << 20
"""A smaller log is resolved by the exact map: both stay in the processor's cache."""

_SHARD_MAP_BYTES = 1 << 20  # of the expected keys: the map of a shard stays in the processor's cache
_SECTION_BYTES = 64 << 10  # at least, unless the keys need more shards: each section costs some calls
_MOST_SHARDS = 512  # so that a section has 128 KiB
_MAP_FILL = 0.8  # share of the map that the keys of a shard may take, if the estimate holds

StoredKeys = Callable[[], Iterator[tuple[int, NDArray[np.uint8], NDArray[np.int64]]]]
"""Starts a walk over the committed live keys in a scratch file; see `shards.live_keys`."""


@dataclass(frozen=True, slots=True)
class MapPlan(Value):
    """How a scan resolves a log whose keys do not fit the map, and why.

    Attributes:
        shards: The log is read once, and its keys and offsets are written to a scratch file, divided by hash;
            0: the log is read in passes, each with the keys of a part of the hash range.
        passes: As expected; of shards one reading.
        scratch_bytes: Expected size of the scratch file; 0 for passes.
        text: Why.
    """

    shards: int
    passes: int
    scratch_bytes: int
    text: str

    @classmethod
    def of(cls, load: MapLoad, map_bytes: int, free_bytes: int) -> MapPlan:
        """Choose the way that moves fewer bytes: decoded by all passes, or decoded once and written and read.

        Args:
            load: The keys against the map.
            map_bytes: Memory of the map.
            free_bytes: Room on the drive. The scratch file may take half of it: appends and the rewrite need
                room, too.
        """
        passes = max(math.ceil(load.keys / load.fitting), 2)
        scratch_bytes = load.row_bytes
        keys = f"~{load.keys} keys do not fit the map of {format_bytes(map_bytes)}"
        begun = load.read_bytes / max(load.source_bytes, 1)  # of the first pass
        by_passes = (passes - begun) * load.decoded_bytes
        by_shards = load.decoded_bytes + 2 * scratch_bytes
        if by_passes <= by_shards:
            text = f"{keys}: {passes} passes cost less than a scratch file of {format_bytes(scratch_bytes)}"
            return cls(0, passes, 0, text)
        if scratch_bytes > free_bytes // 2:
            text = (
                f"{keys}, and a scratch file of {format_bytes(scratch_bytes)} is more than half of the "
                f"{format_bytes(free_bytes)} that are free: {passes} passes"
            )
            return cls(0, passes, 0, text)
        needed = math.ceil(load.entry_bytes / (_MAP_FILL * map_bytes))
        cached = min(math.ceil(load.entry_bytes / _SHARD_MAP_BYTES), map_bytes // (2 * _SECTION_BYTES))
        text = (
            f"{keys}: read once, with a scratch file of ~{format_bytes(scratch_bytes)}, "
            f"instead of in ~{passes} passes"
        )
        shards = min(max(needed, cached, 2), _MOST_SHARDS)
        return cls(shards, 1, scratch_bytes, text)

    def in_passes(self, why: str) -> MapPlan:
        """Return this plan turned into passes, because the scratch file failed."""
        return MapPlan(0, self.passes, 0, f"no scratch file, so more passes: {why}")


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """A place for the scratch file of one scan.

    Attributes:
        open: Return a context with an empty file, which is removed at the end.
        free_bytes: Return the room on the drive.
        dry: The file is planned and not made: the scan takes passes.
        optional: If the file cannot be made or written, the scan takes passes; False: only if the drive is
            full.
        by_hash: The file has hashes in the place of keys: the result is certified before it is published.
        divide_from: Bytes of records from which on there may be a file.
    """

    open: Callable[[], AbstractContextManager[ScratchFile]]
    free_bytes: Callable[[], int]
    dry: bool = False
    optional: bool = False
    by_hash: bool = False
    divide_from: int = DIVIDE_FROM_BYTES

    @classmethod
    def for_read(cls, directory: str) -> ScratchPlace:
        """Return the place of a read: a file without a name, which exists only as long as it is open.

        A reader may lack the right to write, and a cleaning removes files that it does not need. For a log in
        a bucket the file is in the system's directory for temporary files.
        """
        directory = directory if DEFAULT.is_dir(directory) else tempfile.gettempdir()
        return cls(
            lambda: closing(Scratch.without_name(directory)),
            lambda: DEFAULT.free_bytes(directory),
            optional=True,
            divide_from=DIVIDE_FROM_BYTES,
        )

    def plan(self, load: MapLoad, map_bytes: int) -> MapPlan | None:
        """Return how the keys of a log are resolved; None if they fit, or the log is small."""
        if load.decoded_bytes < self.divide_from or load.keys <= load.fitting:
            return None
        return MapPlan.of(replace(load, by_hash=self.by_hash), map_bytes, self.free_bytes())


def resolve(
    sources: Sequence[SegmentSource],
    *,
    map_bytes: int,
    salt: bytes,
    now_ms: int | None,
    outcomes: TransactionOutcomes | None = None,
    due_below: int = NEVER,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
    place: ScratchPlace | None = None,
    by_hash: bool = False,
) -> Resolution:
    """Find every dead record of a log.

    Args:
        sources: All its segments up to the limit of what may be resolved, by ascending base offset.
        map_bytes: Memory for the map; with less memory there are more passes, and the same result.
        salt: Secret random bytes, new for each map.
        now_ms: For a cleaning: a tombstone whose batch has a delete horizon at or before it is dead itself,
            and so is a record without a key. Only for a log from its very start, so that no older copy
            stays. None: only superseded records are dead.
        outcomes: The outcomes of the transactions in `sources`. Records of aborted transactions supersede
            nothing and are dead. Those of ongoing transactions supersede nothing and stay; a cleaning must
            not contain any. None: there are no transactions.
        due_below: For a cleaning: tombstones at this offset and above are not due, whatever their horizon,
            because a reader that holds a lease has not passed them.
        progress: Called with (bytes done, bytes of all passes up to this one) after every chunk.
        threads: With 2, a second thread reads, verifies, decompresses and parses ahead; the result is the
            same.
        place: For a scratch file, if the keys do not fit the map. None: then there are passes.
        by_hash: As for `LogResolver`.

    Raises:
        CorruptBatchError: A batch is damaged.
        UnknownMagicError: A batch has an unknown magic.
        UnsupportedBatchError: A transaction without `outcomes`, or an ongoing one in a cleaning.
    """
    arguments: dict[str, Any] = {
        "map_bytes": map_bytes,
        "salt": salt,
        "rules": Rules.of(now_ms, due_below),
        "outcomes": outcomes,
        "threads": threads,
    }
    return LogResolver(sources, place, progress, None, by_hash=by_hash, **arguments).run()


def may_use_hashes(sources: Sequence[SegmentSource], map_bytes: int, scratch: str | None) -> bool:
    """Return whether a log is large enough for a map of hashes, and its memory, too."""
    size_bytes = sum(source.size for source in sources)
    return size_bytes >= HASHES_FROM_BYTES and map_bytes >= LEAST_MAP_BYTES and not scratch


def resolve_by_hashes(
    sources: Sequence[SegmentSource], place: ScratchPlace | None, **arguments: Any
) -> tuple[HashResolver, Resolution, Survivors | None] | None:
    """Resolve a log by a map of hashes; None if the exact map must decide.

    Each source is a `hash_map.PartSource`; `place` is for survivors, which are not kept without it. Returns
    the resolver that has run, its result, and the survivors, to be closed.
    """
    survivors = None
    if place is not None:
        outputs = 2 * max((source.size for source in sources), default=0)  # one, and the next one
        survivors = Survivors(place.open, lambda: place.free_bytes() // 2 - outputs)
    try:
        resolver = HashResolver(cast("Sequence[PartSource]", sources), survivors=survivors, **arguments)
        return resolver, resolver.run(), survivors
    except BaseException as error:
        if survivors is not None:
            survivors.close()
        if not isinstance(error, HashesUnsure | DataError):  # damage is reported oldest first
            raise
        LOGGER.info("no map of hashes: %s", error)
        return None


class _Divide(Exception):
    """The log is to be resolved in shards."""


class LogResolver:
    """The scan of a whole log, in the way that its keys allow.

    Args:
        sources: As for `resolve`.
        place: As for `resolve`; with its `by_hash` there is no `use_stored`.
        progress: As for `resolve`.
        scratch: A directory for the map's keys, as for `RunningResolution`; None: in memory.
        by_hash: A map of hashes may be tried first: each source is a `hash_map.PartSource`, and nothing needs
            the keys. With a place that has `by_hash` the result is certified.
        arguments: The other arguments of a `Resolver`.

    Attributes:
        used_hashes: The result is that of a map of hashes.
        map_plan: The way, if the keys do not fit the map and there is a place.
        given_up_bytes: Bytes of the log that attempts read which were given up.
        survivors: What the rewrite needs of some chunks, with a map of hashes and a place; to be closed.
    """

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        place: ScratchPlace | None,
        progress: Callable[[int, int], None] | None,
        scratch: str | None,
        *,
        by_hash: bool = False,
        **arguments: Any,
    ) -> None:
        self.used_hashes = False
        self.map_plan: MapPlan | None = None
        self.given_up_bytes = 0
        self.survivors: Survivors | None = None
        self.source_bytes = sum(source.size for source in sources)
        self._sources = sources
        self._place = place
        self._progress = progress
        self._scratch = scratch
        self._by_hash = by_hash
        self._map_bytes: int = arguments["map_bytes"]
        self._arguments = arguments | {"progress": self._report}
        self._before_bytes = 0  # progress of the attempts that were given up
        self._done_bytes = 0  # progress of this attempt

    def run(
        self, keys: int | None = None, use_stored: Callable[[Resolution, StoredKeys], None] | None = None
    ) -> Resolution:
        """Find the dead records.

        Args:
            keys: Distinct keys of the log, if a sample of them did not fit the map; None: not known.
            use_stored: Called with the result while the scratch file exists, if there is one. If it raises an
                error of this file, the log is resolved in passes.
        """
        if self._by_hash and keys is None:
            resolution = self._by_hashes()
            if resolution is not None:
                return resolution
        place = self._place
        try:
            if place is not None and keys is not None and self._sources:
                self._choose(MapLoad.sampled(self._sources, self._map_bytes, keys))
            return self._in_passes(may_divide=place is not None and self.map_plan is None)
        except _Divide:
            self._give_up()  # leaving the block frees the map
        assert place is not None and self.map_plan is not None
        path = ""
        try:
            with place.open() as out:
                path = out.path
                shards = self.map_plan.shards
                self.used_hashes = place.by_hash
                resolution = resolve_divided(
                    self._sources, out, shards, by_hash=place.by_hash, **self._arguments
                )
                if use_stored is not None:
                    use_stored(resolution, partial(live_keys, out, shards, resolution.dead))
                return resolution
        except LastwordError as error:
            if path and error.file != path:
                raise
            if not place.optional and not isinstance(error, DiskFullError | CorruptFileError):
                raise
            why = error.message
        except HashesUnsure as unsure:
            why = str(unsure)
        self._give_up()
        self.used_hashes = False
        self.map_plan = self.map_plan.in_passes(why)
        return self._in_passes()

    def _by_hashes(self) -> Resolution | None:
        """Return the result of a map of hashes; None if the exact map must decide."""
        if not may_use_hashes(self._sources, self._map_bytes, self._scratch):
            return None
        arguments = {name: value for name, value in self._arguments.items() if name != "old_due"}
        place = self._place if self._place is not None and self._place.by_hash else None
        found = resolve_by_hashes(self._sources, place, certified=place is not None, **arguments)
        if found is None:
            self._give_up()
            return None
        _, resolution, self.survivors = found
        self.used_hashes = True
        return resolution

    def _in_passes(self, *, may_divide: bool = False) -> Resolution:
        resolver = Resolver(self._sources, **self._arguments)
        resolver.scan.spill = spill_in(self._scratch)
        if may_divide:
            resolver.overfull = self._choose
        return resolver.run()

    def _choose(self, load: MapLoad) -> None:
        """Choose how to resolve keys that do not fit. A dry run writes nothing, and continues in passes."""
        assert self._place is not None
        self.map_plan = self._place.plan(load, self._map_bytes)
        if self.map_plan is None or not self.map_plan.shards:
            return
        if not self._place.dry:
            raise _Divide
        self.given_up_bytes = load.read_bytes

    def _give_up(self) -> None:
        self.given_up_bytes += min(self._done_bytes, self.source_bytes)
        self._before_bytes += self._done_bytes
        self._done_bytes = 0

    def _report(self, done_bytes: int, total_bytes: int) -> None:
        self._done_bytes = done_bytes
        if self._progress is not None:
            self._progress(self._before_bytes + done_bytes, self._before_bytes + total_bytes)
