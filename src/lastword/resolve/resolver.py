"""A whole log at once: every record is met once, or once for each share of the hash range, oldest first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from lastword.records.chunk import CHUNK_BYTES, Chunk
from lastword.resolve.facts import Fates, Resolution, SegmentSource, check_order, digest_seed_of
from lastword.resolve.offset_map import too_large_key
from lastword.resolve.rules import LAST_HASH, Rules
from lastword.resolve.spill import spill_in
from lastword.resolve.walk import Walk, records_at_most
from lastword.units import NEVER

_FILL = 0.97  # share of the map that a range is planned to fill
_WINDOW = 16  # chunks over which the rate of new keys is measured


def resolve(
    sources: Sequence[SegmentSource],
    *,
    map_bytes: int,
    salt: bytes,
    now_ms: int | None,
    fates: Fates | None = None,
    old_due: Sequence[bool] = (),
    due_below: int = NEVER,
    progress: Callable[[int, int], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    threads: int = 1,
    scratch: str | None = None,
) -> Resolution:
    """Find every dead record of a log.

    Args:
        sources: all its segments up to the limit of what may be resolved, by ascending base offset.
        map_bytes: memory for the map; too little of it only means more passes, never another result.
        salt: secret random bytes, new for each map.
        now_ms: for a cleaning: a tombstone whose batch has a delete horizon at or before it is dead itself,
            and so is a record without a key. Only for a log from its very start, so that no older copy is
            left behind. None: only replaced records are dead.
        fates: what became of the transactions in `sources`. Records of aborted ones have no say about keys
            and are dead at once. Those of undecided ones have no say either and stay; a cleaning must not
            meet any. None: there are no transactions.
        old_due: for a cleaning, one a source: whether tombstones of magic 0 and 1 there are due. These
            formats have no delete horizon. Empty: none is.
        due_below: for a cleaning: tombstones at this offset and above are not due, whatever their horizon: a
            reader that holds a lease has not passed them.
        progress: hears (bytes done, bytes in all of this pass and those before) after every chunk.
        threads: 2 lets a second one read, verify, decompress and parse ahead; the result is the same.
        scratch: a directory for the map's keys, as for `RunningResolution`.

    Raises CorruptBatchError, UnknownMagicError, UnsupportedBatchError (a transaction without `fates`, or an
    undecided one in a cleaning).
    """
    rules = Rules()
    if now_ms is not None:
        rules = Rules(decided=True, keyless_go=True, now_ms=now_ms, due_below=due_below)
    resolver = Resolver(sources, map_bytes, salt, rules, fates, old_due, progress, chunk_bytes, threads)
    resolver.walk.spill = spill_in(scratch)
    return resolver.run()


class Resolver:
    """Passes over the records of a log, or of a share of all keys (`hashes`: the first and last of them)."""

    hashes = (0, LAST_HASH)

    def __init__(
        self,
        sources: Sequence[SegmentSource],
        map_bytes: int,
        salt: bytes,
        rules: Rules,
        fates: Fates | None = None,
        old_due: Sequence[bool] = (),
        progress: Callable[[int, int], None] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        threads: int = 1,
    ) -> None:
        check_order(sources)
        self.sources = sources
        self.fates = fates
        self.old_due = old_due
        self.threads = threads
        self.progress = progress
        self.chunk_bytes = chunk_bytes
        self.total_bytes = sum(source.size for source in sources)
        self.done_bytes = 0  # of this pass
        self.walk = Walk(map_bytes, salt, digest_seed_of(salt), rules)
        self.walk.tally.add(sources)
        self.recent: deque[tuple[int, int]] = deque(maxlen=_WINDOW)  # (bytes done, keys in the map)

    def run(self) -> Resolution:
        started = time.perf_counter()
        first, end = self.hashes
        passes = keys = 0
        while True:
            passes += 1
            self.take_all(passes)
            offset_map = self.walk.map
            if offset_map is None:  # no batch at all
                break
            last = offset_map.hash_range[1]
            found = offset_map.distinct_keys
            keys += found
            if last >= end:
                break
            width = last - first + 1
            share = _FILL * offset_map.capacity() / max(found, 1)
            first = last + 1
            offset_map.start_pass(first, min(first + max(int(width * share), 1) - 1, end))
        return self.walk.resolution(passes, keys, time.perf_counter() - started)

    def take_all(self, number: int) -> None:
        """Pass `number`, from 1: every record of the map's range."""
        self.done_bytes = 0
        self.recent.clear()
        before = (number - 1) * self.total_bytes
        chunks = self.walk.take(
            self.sources,
            self.fates,
            partial(records_at_most, self.sources),
            self.make_room,
            first_pass=number == 1,
            old_due=self.old_due,
            chunk_bytes=self.chunk_bytes,
            threads=self.threads,
        )
        with closing(chunks):
            for chunk in chunks:
                self.done_bytes += chunk.size_bytes
                if self.walk.map is not None:
                    self.recent.append((self.done_bytes, self.walk.map.distinct_keys))
                if self.progress is not None:
                    self.progress(before + self.done_bytes, before + self.total_bytes)

    def make_room(self, chunk: Chunk) -> None:
        """Regrow the slots, or else give up a part of the hash range: later passes will cover it."""
        offset_map = self.walk.map
        assert offset_map is not None
        used = offset_map.distinct_keys
        if used == 0 and offset_map.spill is None:
            raise too_large_key(offset_map.map_bytes, chunk.file)
        if offset_map.make_room():
            return
        if used == 0:
            raise too_large_key(offset_map.map_bytes, chunk.file)
        done = max(self.done_bytes, 1)
        then_bytes, then_keys = self.recent[0] if self.recent else (0, 0)
        rate = max(used - then_keys, 0) / max(done - then_bytes, 1)
        expected = used + rate * max(self.total_bytes - done, 0)
        share = min(max(_FILL * used / expected, 1 / 64), 0.85)
        self.recent.clear()
        offset_map.narrow(share, self.walk.store.arrays, self.walk.tally.arrays)
