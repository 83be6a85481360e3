"""`KeyIndex`: the newest committed record of each key of one partition, by lookups.

The index covers the log below an offset, `end`: runs with disjoint ranges of offsets, the newest first, and
above them an overlay in memory (digest -> word). Before a lookup the index *follows* the log: the records
that were appended since are read into the overlay, up to the last stable offset. A lookup takes the newest
entry of the key's digest, reads the record there, and compares the key.

Runs. An overlay with many entries becomes a run; many records at a time (`bulk`) become runs directly. Then
a run is merged with the newer ones unless it is larger than all of them together: each entry is written
about log2(index / overlay) times, and a lookup meets that many runs at most.

A state also shows the committed records from the last stable offset on, behind undecided ones. `to_end` takes
them in, too: they are in a dict of their own until the last stable offset has passed them.

Two kinds. In a directory that is open to append, runs are files, and the index is saved with each new run and
at closing. It is noticed when the log is cut (`Tail.cuts`). So it is in the private copy of a cleaning in a
bucket, where `pays` decides whether there is an index, and `grow` leaves one run with places. Elsewhere
nothing is written: runs of a writer are read, if they fit the log (`manifest`). All else is in memory, up to
a limit; above, `follow` returns False, and the caller scans. There the log is a view, and whenever it shows
other segments, the notes of cuts and the witness are compared again. The notes are read before the view, and
again after it: a cut between both would otherwise be missed.

An index that proposes a record that is not there, or another key's, is behind the log or wrong. `Mismatch`
says so: the caller lets the view catch up and tries again, then drops the index and scans.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from lastword.errors import (
    CorruptFileError,
    DataError,
    DiskFullError,
    FileVanishedError,
    LastwordError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    StorageError,
)
from lastword.files import FileFacts, Files
from lastword.keys import manifest as saved
from lastword.keys.manifest import Manifest, Witness
from lastword.keys.run import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    FILL,
    SALT_BYTES,
    Memory,
    Run,
    RunWriter,
    Sink,
    digest_function,
    entry_of,
    home_blocks,
)
from lastword.metrics import KEY_INDEX_DROPS
from lastword.partition import removal_log, scan
from lastword.partition.moment import Range, at_one_moment
from lastword.partition.reads import ATTEMPTS
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.keys.bulk import Places
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.records.record import RawRecord
    from lastword.resolve.running import RunningResolution

OVERLAY_ENTRIES = 50_000
"""An overlay of this size becomes a run. An entry takes about `ENTRY_MEMORY` bytes."""
ENTRY_MEMORY = 200
WORTH_SAVING = 1000
"""At closing a smaller overlay is not saved: the next process reads as many records in milliseconds."""
MANY = 20_000
"""Kernels read more new records than this, and are loaded if they are not."""
PLAIN_READS = 500
"""After this number of records that plain Python has read, kernels are loaded."""
COST_RATIO = 2.0
"""An index in a bucket is written if its bytes, times this, are at most those of the scan that it avoids."""
ENTRY_COST_BYTES = BLOCK_BYTES / FILL
MOST_MERGED = 64
"""The most runs of one size that are in memory as handles, and in a merge, while a log is read."""
MOST_PLACED = 256
"""The manifest names at most this number of segments whose positions a run has: in a bucket it is small."""
DENSE = 0.25
"""From this number of keys for each block of the runs on, NumPy searches whole runs."""
FEW = 16
"""At most this number of records is read one by one, and more in one call."""


class Mismatch(Exception):
    """The index proposes a record that is not there: it is behind the log, or wrong."""


class KeyIndex:
    """The key index of a partition. Its caller holds `lock`.

    Attributes:
        end: The records below are in the index.
        lock: Held from `follow` to the end of the lookup.
    """

    def __init__(
        self, files: Files, directory: str, topic: str, *, writes: bool, most_bytes: Callable[[], int]
    ) -> None:
        """Make an index that has read nothing.

        Args:
            files: The storage.
            directory: The partition's directory.
            topic: For metrics.
            writes: The caller has the log open to append, and runs are saved.
            most_bytes: Returns the most memory that entries may take.
        """
        self.lock = threading.RLock()
        self.end = 0
        self._files, self._directory, self._topic = files, directory, topic
        self._writes = writes
        self._most_bytes = most_bytes
        self._log: object = None
        """The log or view, and for a view the set of segments, that the index has followed."""
        self._segments: object = None
        self._cuts = 0
        self._incarnation: object = None
        self._is_too_large = False
        self._plain_reads = 0
        self._loaded: FileFacts | None = None  # facts of the manifest in the directory
        self._saved_end = 0
        self._clear(os.urandom(SALT_BYTES))

    def _clear(self, salt: bytes) -> None:
        self._salt, self._digest = salt, digest_function(salt)
        self._runs: list[Run] = []
        self._overlay: dict[bytes, int] = {}
        self._clear_above()
        self._written: set[str] = set()  # names of runs that no manifest names yet
        self._witness: Witness | None = None
        self._placed: tuple[int, ...] = ()
        self.end = self._saved_end = 0

    def _clear_above(self) -> None:
        """Forget the records from the last stable offset on."""
        self._above: dict[bytes, int] = {}
        self._above_start = self._above_end = 0
        self._undecided: dict[int, int] = {}

    @property
    def memory_bytes(self) -> int:
        """Return about the memory that entries take."""
        runs = sum(run.size_bytes for run in self._runs if run.in_memory)
        return runs + (len(self._overlay) + len(self._above)) * ENTRY_MEMORY

    @property
    def _overlay_most(self) -> int:
        """The size at which the overlay becomes a run."""
        return min(OVERLAY_ENTRIES, max(1, self._most_bytes() // (2 * ENTRY_MEMORY)))

    # -------------------------------------------------------------- follow the log

    def follow(self, log: PartitionLog | PartitionView, *, to_end: bool = False) -> bool:
        """Take in what was appended, up to the last stable offset of now, or of the view.

        Args:
            log: The log.
            to_end: Also the committed records from there on.

        Returns:
            False: The entries do not fit the memory. The index is empty.

        Raises:
            Mismatch: The log has moved: it is followed in its new place.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._follow(log) and (not to_end or self._follow_above(log))
            except (FileVanishedError, OffsetOutOfRangeError, ReadOvertakenError):  # cleaned, trimmed or cut
                if log.grows and cast("PartitionLog", log).is_closed:  # moved
                    raise Mismatch from None
                if attempt == ATTEMPTS - 1:
                    raise
                log.refresh()
            except CorruptFileError as error:
                if error.code != saved.FORM.code:
                    raise
                self.drop()
            except (DiskFullError, StorageError):
                # The index cannot be written: it is kept in memory from now on.
                if not self._writes:
                    raise
                self._writes = False
                self._clear(os.urandom(SALT_BYTES))
                self._log = None
        return False

    def _follow(self, log: PartitionLog | PartitionView) -> bool:
        if self._is_too_large and self._loaded == self._manifest_facts():
            return False
        if log.grows:
            self.load(cast("PartitionLog", log))
        elif self._log is not log or self._segments is not log.segment_set:
            self._adopt(cast("PartitionView", log))
        return log.stable_offset <= self.end or self._read(log)

    def load(self, log: PartitionLog) -> None:
        """Begin with the saved index of an open log, unless the index has followed this log."""
        if self._log is not log or self._cuts != log.tail.cuts:
            self._log, self._cuts = log, log.tail.cuts
            self._load(log.view())

    def _unread(self, view: PartitionView) -> tuple[int, int]:
        """Return the range of a view that is not in the index."""
        return max(self.end, view.log_start), min(view.stable_offset, view.log_end)

    def _adopt(self, view: PartitionView) -> None:
        """Follow another view of the log, if it shows that the log was not cut; else begin again."""
        self._clear_above()
        notes = removal_log.load(self._files, self._directory)
        is_known = (
            self._log is not None
            and self._incarnation == saved.incarnation(view)
            and notes.cut_count == self._cuts
            and self.end <= min(view.stable_offset, view.log_end)
            and (self.end <= view.log_start or self._witness is not None)
            and (self._witness is None or self._witness.testifies(view))
        )
        if is_known and self.end - self._saved_end > WORTH_SAVING:  # a writer may have saved more
            is_known = self._manifest_facts() == self._loaded
        if not is_known:
            self._load(view)
        self._log, self._segments = view, view.segment_set

    def _manifest_facts(self) -> FileFacts | None:
        return self._files.stat(saved.path_of(self._directory))

    def _load(self, view: PartitionView) -> None:
        """Begin with the saved index, or with an empty one. A view without the lock is renewed."""
        for _ in range(ATTEMPTS):
            self._clear(os.urandom(SALT_BYTES))
            self._is_too_large = False
            notes = removal_log.load(self._files, self._directory)
            self._loaded = self._manifest_facts()
            if not view.trusted:
                view.refresh()
            with suppress(CorruptFileError):
                found = None if self._loaded is None else saved.load(self._files, self._directory)
                try:
                    if found is not None and found.fits(view):
                        self._runs = saved.open_runs(self._files, self._directory, found)
                        self._salt, self._digest = found.salt, digest_function(found.salt)
                        self.end = self._saved_end = found.end
                        self._witness, self._placed = found.witness, found.placed
                except FileVanishedError:
                    if self._manifest_facts() != self._loaded:
                        continue  # a writer has saved another one
            if removal_log.load(self._files, self._directory).cut_count == notes.cut_count:
                break
        self._incarnation = saved.incarnation(view)
        if not view.trusted:
            self._cuts = notes.cut_count
        elif not self._runs and self._writes:
            self._remove_saved()

    def _remove_saved(self) -> None:
        with suppress(LastwordError):
            self._files.unlink(saved.path_of(self._directory), missing_ok=True)
            saved.remove_others(self._files, self._directory, ())

    def _read(self, log: PartitionLog | PartitionView) -> bool:
        """Read the records from `self.end` on, up to the last stable offset.

        The range is read as of one moment: a cleaning meanwhile may remove records because of newer ones that
        are above its end, and their keys would be missing.
        """
        range_ = Range.of(_view_of(log), self._unread)
        if range_.start < range_.end:
            if range_.end - range_.start > MANY and not scan.is_short(range_.view, range_.start, range_.end):
                self._read_many(range_)
            else:
                digest, words = self._digest, {}
                for record in _records(log, range_):
                    if record.key is not None:
                        words[digest(record.key)] = record.offset << 1 | (record.value is None)
                self._overlay.update(words)
            if not log.grows:
                self._witness = Witness.of(range_.view, range_.end)
        self.end = max(self.end, range_.end)
        self._save_large(log, self._overlay_most)
        return self._fits_memory()

    def _fits_memory(self) -> bool:
        """Return whether the entries fit the memory; if not, forget them."""
        if self.memory_bytes <= self._most_bytes():
            return True
        self._clear(self._salt)
        self._log = None
        self._is_too_large = True
        return False

    def _follow_above(self, log: PartitionLog | PartitionView) -> bool:
        """Take in the committed records from the last stable offset on.

        When a transaction is decided, the records are read again from its first one on: all committed ones in
        order give the newest of each key. A decision appends a marker, so that the log end shows it.
        """
        if log.log_end <= self.end:
            if self._above_end:
                self._clear_above()
            return True
        if log.log_end == self._above_end:
            return True
        view = _view_of(log)
        undecided = view.undecided
        decided = [first for id_, first in self._undecided.items() if undecided.get(id_) != first]
        start = max(self.end, view.log_start, min((self._above_end, *decided)))
        if self._above_start != self.end:
            self._above_start = self.end
            self._above = {digest: word for digest, word in self._above.items() if word >> 1 >= self.end}
        digest = self._digest
        for record in at_one_moment(Range(view, start, view.log_end), scan.records):
            if record.key is not None:
                self._above[digest(record.key)] = record.offset << 1 | (record.value is None)
        self._above_end, self._undecided = view.log_end, undecided
        return self._fits_memory()

    def note(self, log: PartitionLog, offset: int, key: bytes, *, is_tombstone: bool) -> None:
        """Take in a record without a transaction that the caller has appended, instead of reading it.

        If it does not follow directly what is in the index, if there is much to save first, or if the index
        is in use (a merge of large runs takes seconds), the next lookup reads it.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self._log is not log or self._cuts != log.tail.cuts:
                return
            if offset == self.end and offset < log.stable_offset and len(self._overlay) < OVERLAY_ENTRIES:
                self._overlay[self._digest(key)] = offset << 1 | is_tombstone
                self.end = offset + 1
            elif offset == self._above_end:
                self._above[self._digest(key)] = offset << 1 | is_tombstone
                self._above_end = offset + 1
        finally:
            self.lock.release()

    def save_large(self) -> None:
        """Make a run of a half full overlay, with what was appended since: for the background."""
        with suppress(Mismatch), self.lock:
            log = cast("PartitionLog | None", self._log)
            if self._writes and log is not None and not log.is_closed and self.follow(log):
                self._save_large(log, self._overlay_most // 2)

    def grow(self, log: PartitionLog, running: RunningResolution | None) -> None:
        """Take in the log, and make one run with places: for the private copy of a log in a bucket.

        `close` saves the index.

        Args:
            log: The log.
            running: The newest records below its limit, which are not read then; None: the log is read.
        """
        from lastword.keys import bulk

        with self.lock:
            self.load(log)
            if running is not None:
                self._take_map(running)
            if self.follow(log):
                if self._overlay:
                    self._flush()
                if self._runs:
                    places = bulk.Places(log.view(), MOST_PLACED)
                    self._runs = self._merged(self._runs, is_whole=True, places=places)
                    self._placed = places.numbers

    def _take_map(self, running: RunningResolution) -> None:
        """Begin again with the records of a resolution."""
        from lastword.keys import bulk

        self._clear(os.urandom(SALT_BYTES))
        for entries in bulk.of_map(running, self._salt):
            with self._making() as (sink, made):
                bulk.write_run(sink, entries, self._salt, 0, running.limit)
            self._runs += made
        self.end = running.limit

    def pays(self, view: PartitionView, keys: int | None) -> bool:
        """Return whether an index of the log costs less than a scan of what is not in the index.

        Both are bytes, and files: `Files.derived_cost` segments cost as much as the file of the index, and
        each further one as `Files.file_cost_bytes`. So does a lookup, which reads a block and a batch.

        Args:
            view: The log.
            keys: Number of its keys; None: it is estimated from batches.
        """
        start, end = self._unread(view)
        segments = view.segment_set.between(start, end)
        one, more = view.files.file_cost_bytes, max(len(segments) - view.files.derived_cost, 0.0)
        scan_bytes = sum(segment.size for segment in segments) + more * one
        known = sum(run.entries for run in self._runs)
        if scan_bytes < max(one, COST_RATIO * ENTRY_COST_BYTES * known):
            return False
        if keys is None:
            keys = known + min(end - start, int(scan.estimated_records(segments)))
        return COST_RATIO * ENTRY_COST_BYTES * keys <= scan_bytes

    def _save_large(self, log: PartitionLog | PartitionView, most: int) -> None:
        """Make a run of an overlay of `most` entries, and save all that is not saved."""
        if len(self._overlay) >= most:
            self._flush()
        if self._written:
            self._save(cast("PartitionLog", log))

    def _read_many(self, range_: Range) -> None:
        from lastword.keys import bulk

        if self._overlay:
            self._flush()
        window = min(bulk.WINDOW, max(1024, self._most_bytes() // ENTRY_MEMORY))
        first = self._runs[0].end if self._runs else 0
        added: list[Run] = []
        levels: list[int] = []  # for each run, how often its entries were merged

        def collected(view: PartitionView, start: int, end: int) -> Iterator[tuple[bulk.Entries, int]]:
            return bulk.collected(view, start, end, self._salt, window)

        for entries, reached in at_one_moment(range_, collected):
            with self._making() as (sink, made):
                bulk.write_run(sink, entries, self._salt, first, reached)
            added[:0], levels[:0] = made, [0]
            first = reached
            while levels[:MOST_MERGED] == levels[:1] * MOST_MERGED:
                added[:MOST_MERGED] = self._merged(added[:MOST_MERGED])
                levels[:MOST_MERGED] = [levels[0] + 1]
            if sum(run.size_bytes for run in added if run.in_memory) > self._most_bytes():
                self._runs[:0] = added  # the caller drops them
                return
        self._runs[:0] = self._merged(added, is_whole=not self._runs) if len(added) > 1 else added
        self._merge_small()

    # -------------------------------------------------------------- runs

    def _flush(self) -> None:
        """Make a run of the overlay."""
        start = self._runs[0].end if self._runs else 0
        entries = sorted(entry_of(digest, word) for digest, word in self._overlay.items())
        with self._making() as (sink, made):
            tag = int.from_bytes(os.urandom(4), "little")
            writer = RunWriter(sink, home_blocks(len(entries)), self._salt, tag)
            writer.put_sorted(entries)
            writer.finish(start, self.end)
        self._runs[:0] = made
        self._overlay = {}
        self._merge_small()

    def _merge_small(self) -> None:
        """Merge the newest runs with each older one that is not larger than they are together."""
        count, entries = 1, self._runs[0].entries if self._runs else 0
        while count < len(self._runs) and self._runs[count].entries <= entries:
            entries += self._runs[count].entries
            count += 1
        if count > 1:
            self._runs[:count] = self._merged(self._runs[:count], is_whole=count == len(self._runs))

    def _merged(
        self, runs: Sequence[Run], *, is_whole: bool = False, places: Places | None = None
    ) -> list[Run]:
        from lastword.keys import bulk

        with self._making() as (sink, made):
            bulk.merge(sink, runs, self._salt, is_whole=is_whole, places=places)
        for name in {os.path.basename(run.name) for run in runs} & self._written:
            self._written.discard(name)
            with suppress(LastwordError):  # the next save removes it
                self._files.unlink(saved.path_of(self._directory, name), missing_ok=True)
        return made

    @contextmanager
    def _making(self) -> Iterator[tuple[Sink, list[Run]]]:
        """Yield the sink of a run, and a list in which the run is at the end of the block."""
        made: list[Run] = []
        if not self._writes:
            memory = Memory()
            yield memory, made
            made.append(Run(memory, len(memory.data), self._salt))
            return
        name = saved.new_name()
        path = saved.path_of(self._directory, name)
        removal_log.make_private(self._files, self._directory)
        try:
            with self._files.open_append(path, create=True, exclusive=True) as handle:
                yield handle, made
                handle.fsync()
            source = self._files.open_read(path)
            source.will_read_pieces()
            made.append(Run(source, source.size(), self._salt, path))
        except BaseException:
            with suppress(LastwordError):
                self._files.unlink(path, missing_ok=True)
            raise
        self._written.add(name)

    def _save(self, log: PartitionLog) -> None:
        """Save the runs as the index of the directory, unless the log was cut meanwhile."""
        files, directory, runs = self._files, self._directory, self._runs
        self._written.clear()
        if not runs or not self._writes:
            return
        files.fsync_dir(os.path.join(directory, names.PRIVATE))
        with log.lock:  # so that no cut is between the comparison and the rename
            if log.is_closed or log.tail.cuts != self._cuts:
                return
            notes = removal_log.load(files, directory)
            manifest = Manifest.of(log.view(), notes.cut_count, self._salt, runs, self._placed)
            if manifest is None:
                return
            saved.save(files, directory, manifest)
        self._saved_end = manifest.end
        saved.remove_others(files, directory, [name for name, _ in manifest.runs])

    def close(self) -> None:
        """Save the overlay if it is worth a file. What cannot be saved is read again by the next process."""
        with self.lock, suppress(LastwordError):
            log = cast("PartitionLog | None", self._log)
            if not self._writes or log is None or log.is_closed or log.tail.cuts != self._cuts:
                return
            grows = len(self._overlay) >= WORTH_SAVING
            if grows:
                self._flush()
            if grows or self._written or (self._runs and not self._is_saved(log)):
                self._save(log)

    def _is_saved(self, log: PartitionLog) -> bool:
        """Return whether the index in the directory fits: a cleaning may have replaced its witness."""
        found = saved.load(self._files, self._directory)
        return found is not None and found.fits(log.view())

    def drop(self) -> None:
        """Forget everything, and remove what is saved: it was wrong."""
        KEY_INDEX_DROPS.add(1, self._topic)
        self.remove()

    def remove(self) -> None:
        """Forget everything, and remove what is saved; the next lookup makes the index again."""
        self._clear(os.urandom(SALT_BYTES))
        self._log = None
        if self._writes:
            self._remove_saved()

    # -------------------------------------------------------------- look up

    def find(self, log: PartitionLog | PartitionView, keys: Iterable[bytes]) -> dict[bytes, RawRecord]:
        """Return the newest record of each key below `end`, without the keys that are absent or deleted.

        Raises:
            Mismatch: The index proposes a record that is not there.
        """
        named = list(keys)
        loads = self._may_load(len(named)) or scan.kernels_loaded()
        try:
            words = self._words(named, loads)
        except (CorruptFileError, FileVanishedError) as error:  # of a run
            self._lost(error)
            raise Mismatch from None
        lowest = log.log_start << 1
        proposed = [
            (key, word >> 1)
            for key, word in zip(named, words, strict=True)
            if word >= lowest and not word & 1
        ]
        found: dict[bytes, RawRecord] = {}
        try:
            records = _read_at(log, [offset for _, offset in proposed], loads)
            for (key, _), record in zip(proposed, records, strict=True):
                if record is None or record.key != key or record.value is None:
                    raise Mismatch
                found[key] = record
        except (FileVanishedError, OffsetOutOfRangeError):  # cleaned, trimmed or cut meanwhile
            raise Mismatch from None
        return found

    def find_one(
        self, log: PartitionLog | PartitionView, key: bytes, *, to_end: bool = False
    ) -> RawRecord | None:
        """Return the newest record of a key below `end`; None if it is absent or deleted. As `find`.

        `to_end`: the newest of all that `follow` with `to_end` has taken in.
        """
        position = -1
        try:
            digest = self._digest(key)
            word = self._overlay.get(digest)
            if word is None:
                for run in self._runs:
                    word = run.find(digest)
                    if word is not None:
                        position = run.position
                        break
        except (CorruptFileError, FileVanishedError) as error:
            self._lost(error)
            raise Mismatch from None
        if to_end and self._above:
            word = max(self._above.get(digest, -1), -1 if word is None else word)
            word = None if word < 0 else word
        if word is None or word & 1 or word >> 1 < log.log_start:
            return None
        try:
            record = None if position < 0 else self._read_placed(log, word >> 1, position)
            if record is None:
                loads = self._plain_reads > PLAIN_READS or self._may_load(1) or scan.kernels_loaded()
                record = _read_one(log, word >> 1, loads)
        except (FileVanishedError, OffsetOutOfRangeError):
            raise Mismatch from None
        if record is None or record.key != key or record.value is None:
            raise Mismatch
        return record

    def _lost(self, error: LastwordError) -> None:
        """Load the saved index again if a run is gone: a commit replaced it, and a collection removed it."""
        if isinstance(error, FileVanishedError):
            self._log = None

    def _read_placed(self, log: PartitionLog | PartitionView, offset: int, position: int) -> RawRecord | None:
        """Return the record at an offset by one request, if it is found near a position of its segment."""
        holding = log.segment_set.holding(offset)
        if holding is None or holding[0].id.number not in self._placed:
            return None
        segment, bound = holding
        with suppress(DataError):
            return scan.near(segment, position, offset, bound or log.log_end, self._topic)
        return None

    def _words(self, keys: Sequence[bytes], loads: bool) -> Iterable[int]:
        """Return the newest word of each key, -1 for a key without an entry. `loads`: NumPy may be loaded."""
        if loads and len(keys) > max(FEW, DENSE * sum(run.blocks for run in self._runs)):
            return self._words_of_many(keys)
        overlay = self._overlay
        digests = [self._digest(key) for key in keys]
        words = {digest: overlay[digest] for digest in digests if digest in overlay}
        left = sorted(digests) if self._runs else []
        for run in self._runs:
            if len(words) == len(digests):
                break
            words |= run.find_sorted(digest for digest in left if digest not in words)
        return [words.get(digest, -1) for digest in digests]

    def _words_of_many(self, keys: Sequence[bytes]) -> Iterable[int]:
        """As `_words`, with NumPy, by one pass over each run."""
        import numpy as np

        from lastword.keys import bulk

        digests = bulk.digests_of(keys, self._salt)
        words = np.full(len(keys), -1, np.int64)
        if overlay := self._overlay:
            data = digests.tobytes()
            each = (overlay.get(data[at : at + DIGEST_BYTES], -1) for at in range(0, len(data), DIGEST_BYTES))
            words = np.fromiter(each, np.int64, len(keys))
        for run in self._runs:
            left = np.flatnonzero(words < 0)
            words[left] = bulk.find(run, digests[left])
        return words.tolist()

    def _may_load(self, count: int) -> bool:
        """Count the records, and return whether it is time to load the kernels."""
        self._plain_reads += count
        return self._plain_reads > PLAIN_READS


def _records(log: PartitionLog | PartitionView, range_: Range) -> Iterable[RawRecord]:
    if range_.end - range_.start == 1 and scan.kernels_loaded():
        record = scan.single(log, range_.start, committed=True)
        if record is not None:
            return (record,)
    return at_one_moment(range_, scan.records)


def _read_at(
    log: PartitionLog | PartitionView, offsets: list[int], loads: bool
) -> Iterable[RawRecord | None]:
    """Return the committed record at each offset, or None."""
    loads = loads or scan.kernels_loaded()
    if loads and len(offsets) > FEW:
        from lastword.partition.lookups import records_at

        return records_at(_view_of(log), offsets, committed=True)
    return (_read_one(log, offset, loads) for offset in offsets)


def _read_one(log: PartitionLog | PartitionView, offset: int, loads: bool) -> RawRecord | None:
    """Return the committed record at an offset, or None."""
    record = scan.single(log, offset, committed=True) if loads else None
    if record is None:
        record = next(iter(scan.records(_view_of(log), offset, offset + 1)), None)
    return record


def _view_of(log: PartitionLog | PartitionView) -> PartitionView:
    return cast("PartitionLog", log).view() if log.grows else cast("PartitionView", log)
