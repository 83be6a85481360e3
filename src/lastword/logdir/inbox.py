"""The inbox of a log directory: commits of writers that do not hold its lock.

Tasks of a job stage batches (`partition.staged`); the job's end is one file in the root, a *manifest* that
names them. Renaming it into the inbox is the commit: from then on it is taken in wholly, whatever dies.

```
<root>/lastword.inbox-<number>-<job>       waits; numbers rise, the lowest goes first
<root>/lastword.applying-<number>-<job>    is being taken in, by whoever holds the lock
<root>/lastword.refused-<number>-<job>     could not be: its text says why, and nothing more will come of it
<root>/lastword.writers                    of each writer with a name, the last sequence that was taken in
```

Who takes in: the process that has the directory open to append, when it opens it and whenever a manifest
comes (`Watch`); or, when nobody holds the lock, the job's own driver. So a pipeline writes while another
process appends and cleans.

    driver                                    holder of the lock
    ------                                    ------------------
    stages; renames the manifest in
    waits until it is gone                    renames it to `applying`; takes in each partition, syncs it;
                                              notes writer and sequence; removes the manifest
    still in the inbox after its patience:
    takes it back, and nothing was written

A crash of the holder leaves `applying`: the next one that opens the directory finishes it before anything
else, and each partition knows what it has already (`staged.take_in`), so nothing comes in twice. A manifest
with a writer whose sequence was taken in before, also under the name of another job, appends nothing: that is
what makes a batch that is run again after a crash of its driver come in once. The note is written after the
last partition is synced, so it never promises what a power cut can take; partitions may appear one after
another. No batch is appended anywhere before the checksums of all of the commit were found right. Of a large
commit several partitions are worked on at once, each with files of its own, so a crash leaves in each what it
could leave in that one alone.

All files are plain, for a directory of ours in the root would stop a broker from starting.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lastword.errors import (
    BusyError,
    CorruptFileError,
    DataError,
    FileVanishedError,
    LastwordError,
    LogDirLockedError,
    UsageError,
)
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.logdir.side_by_side import side_by_side
from lastword.partition import staged
from lastword.partition.incomplete_commit import discard, staging_dir
from lastword.partition.staged import StagedFile
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.logdir.log_dir import LogDirectory

log = logging.getLogger(__name__)

KEEP_WRITERS_MS = 30 * 24 * 3600 * 1000
"""How long a writer that commits nothing is remembered."""
MOST_BETWEEN_COMMITS_MS = 24 * 3600 * 1000
"""So much at most counts as the time between two commits of anybody."""
KEEP_REFUSED_MS = 7 * 24 * 3600 * 1000
_FORMAT = 1

WRITERS_FORM = Framed(
    "writers",
    1,
    "bad-writers",
    "restore the file from a copy; without it, which batches were written is not known",
)
REFUSED_FORM = Framed("refused", 1, "bad-note", "remove the file: it only says why a commit was refused")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit. `writer` and `sequence` name it for ever (a streaming query and its batch), or are None.

    sync   the records are durable when it has been taken in; a commit with a writer always is
    """

    job: str
    files: tuple[StagedFile, ...]
    sync: bool
    writer: str | None = None
    sequence: int | None = None

    def encoded(self) -> bytes:
        body = json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(body), body)

    @classmethod
    def decoded(cls, data: bytes, file: str) -> Manifest:
        """CorruptFileError for bytes that are no manifest."""
        body = data.partition(b" ")[2].removesuffix(b"\n")
        try:
            if data != b"%08x %s\n" % (zlib.crc32(body), body):
                raise ValueError("its checksum differs")
            fields = json.loads(body)
            if fields.pop("format") != _FORMAT:
                raise ValueError("another version wrote it")
            files = tuple(StagedFile(**one) for one in fields.pop("files"))
            return cls(files=files, **fields)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptFileError(
                f"{file} is no commit: {error}",
                code="bad-commit",
                remedy="remove it, and run the job again",
                file=file,
            ) from None


# ---------------------------------------------------------------- the driver's side


def commit(
    root: str,
    manifest: Manifest,
    files: Files,
    open_to_append: Callable[[], LogDirectory],
    *,
    patience_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Put the manifest into the inbox, and return when it has been taken in, here or elsewhere.

    BusyError: nobody took it in within the patience (a broker holds the lock, or a process that does not
    look); it was taken back, nothing was written. The error of who refused it, if its files are damaged.
    """
    name = f"{_next_number(files, root, now_ms()):020d}-{manifest.job}"
    waiting = os.path.join(root, names.INBOX + name)
    files.write_atomic(waiting, manifest.encoded())
    deadline = monotonic() + patience_seconds
    while True:
        refused = os.path.join(root, names.REFUSED + name)
        if files.exists(refused):
            why = read_refusal(files, refused)
            raise DataError(f"the commit of job {manifest.job} was refused: {why}", file=refused)
        if not files.exists(waiting) and not files.exists(os.path.join(root, names.APPLYING + name)):
            if files.exists(refused):
                continue
            return
        try:
            with open_to_append() as directory:  # opening takes in what waits
                if pending(files, root):
                    take_in(directory)  # tells why it could not
                continue
        except LogDirLockedError as error:
            late = monotonic() - deadline
            if late > 10 * patience_seconds:
                raise BusyError(
                    f"{error.message}, and takes in the commit for {late:.0f} s; how that ends is not known",
                    remedy="run the job again with the same producer and sequence: it comes in once",
                ) from error
            if late > 0 and _take_back(files, root, waiting):
                raise BusyError(
                    f"{error.message}, and did not take in the commit within {patience_seconds:.0f} s; "
                    "nothing was written",
                    remedy="stop that process, or let it be one that has the directory open in mode 'a'",
                ) from error
        except LastwordError as error:
            if _take_back(files, root, waiting):
                _add(error, f"the commit of job {manifest.job} was taken back, and nothing was written")
            elif files.exists(os.path.join(root, names.APPLYING + name)):
                _add(
                    error,
                    f"the commit of job {manifest.job} was begun, and comes in when the directory is next "
                    "opened to append",
                )
            else:
                continue  # it is in: what failed was another one's
            raise
        sleep(0.05)


def _add(error: LastwordError, words: str) -> None:
    error.message += f"; {words}"
    error.args = (error.message,)


def _next_number(files: Files, root: str, now_ms: int) -> int:
    """Above every number that is there: commits keep the order in which they were made, whatever the clock
    does."""
    taken = [number for number, *_ in _entries(files, root, (names.INBOX, names.APPLYING))]
    return max([now_ms, *(number + 1 for number in taken)])


def _take_back(files: Files, root: str, waiting: str) -> bool:
    """False if somebody has begun to take it in: then it will come in."""
    try:
        files.unlink(waiting)
    except FileVanishedError:
        return False
    files.fsync_dir(root)
    return True


def holds(files: Files, root: str, job: str) -> bool:
    """Is a commit of this job waiting, or being taken in?"""
    return job in _jobs(files, root)


def _jobs(files: Files, root: str) -> set[str]:
    """Those whose commits wait, or are being taken in."""
    return {name.partition("-")[2] for _, name, _ in _entries(files, root, (names.INBOX, names.APPLYING))}


# ---------------------------------------------------------------- the side of who holds the lock


def pending(files: Files, root: str) -> bool:
    """Does a commit wait, or one that was begun?"""
    return bool(_entries(files, root, (names.INBOX, names.APPLYING)))


def take_in(directory: LogDirectory) -> int:
    """Take in every commit that waits, the oldest first; returns how many records were new.

    One that cannot be taken in (a file that is not as its task left it, a topic that is gone) is set aside
    as refused, and the next has its turn. StorageError and CapacityError leave it where it is, to be tried
    again.
    """
    files, root = directory.files, directory.path
    added = 0
    # What was begun goes first: its batches are the last ones in the log.
    for _, name, prefix in sorted(
        _entries(files, root, (names.APPLYING, names.INBOX)),
        key=lambda one: (one[2] != names.APPLYING, one[0]),
    ):
        applying = os.path.join(root, names.APPLYING + name)
        if prefix == names.INBOX:
            try:
                files.rename(os.path.join(root, names.INBOX + name), applying)
            except FileVanishedError:
                continue  # taken back
        try:
            manifest = Manifest.decoded(files.read_bytes(applying), applying)
            added += _apply(directory, manifest)
        except (DataError, UsageError) as error:
            log.warning("lastword: a commit was refused: %s", error)
            REFUSED_FORM.save(files, os.path.join(root, names.REFUSED + name), {"reason": str(error)})
            _give_up(directory, name.partition("-")[2])
        files.unlink(applying, missing_ok=True)
        files.fsync_dir(root)
    _forget_old(directory)
    return added


def _give_up(directory: LogDirectory, job: str) -> None:
    """What came in of a commit that is refused stays, and nothing waits for the rest of it."""
    for topic, number in directory.topic_partitions():
        place = directory.directory(topic, number)
        if directory.files.exists(staging_dir(place, job)):
            discard(directory.files, place, job)
            with suppress(LastwordError):  # one that does not open holds nothing back
                directory.log(topic, number).end_commit(job)


def _apply(directory: LogDirectory, manifest: Manifest) -> int:
    writers = Writers.load(directory.files, directory.path)
    known = manifest.writer is not None and manifest.sequence is not None
    if known and writers.last(manifest.writer) >= (manifest.sequence or 0):
        for topic, number in {(one.topic, one.partition) for one in manifest.files}:
            discard(directory.files, directory.directory(topic, number), manifest.job)
        return 0
    parts: dict[tuple[str, int], list[StagedFile]] = {}
    for one in manifest.files:
        parts.setdefault((one.topic, one.partition), []).append(one)
    there = set(directory.topic_partitions())
    gone = [f"{topic}-{number}" for topic, number in parts if (topic, number) not in there]
    if gone:
        raise UsageError(f"{', '.join(sorted(gone))} is not there any more", remedy="run the job again")
    places, size_bytes = sorted(parts), sum(one.size_bytes for one in manifest.files)
    for place in places:
        staged.check(directory.files, directory.directory(*place), manifest.job, parts[place])

    def verify(place: tuple[str, int]) -> None:
        staged.check_batches(directory.files, directory.directory(*place), manifest.job, parts[place])

    side_by_side(verify, places, size_bytes)
    # Every log is opened before the first is appended to: a commit that is refused has added nothing.
    logs = {place: directory.log(*place) for place in places}
    waiting, sync = _jobs(directory.files, directory.path), manifest.sync or known

    def append(place: tuple[str, int]) -> int:
        return staged.take_in(logs[place], manifest.job, parts[place], sync=sync, waiting=waiting)

    added = sum(side_by_side(append, places, size_bytes))
    if manifest.writer is not None and manifest.sequence is not None:
        writers.note(manifest.writer, manifest.sequence, directory.clock.now_ms())
        writers.save(directory.files, directory.path)
    return added


class Writers:
    """The last sequence of each writer, in one small file of the root."""

    def __init__(self, last: dict[str, tuple[int, int]]) -> None:
        self._last = last  # writer -> (sequence, when it was noted in ms)

    @classmethod
    def load(cls, files: Files, root: str) -> Writers:
        """CorruptFileError for a damaged file: to believe that a writer is new would write a batch twice."""
        path = os.path.join(root, names.WRITERS)
        fields = WRITERS_FORM.load(files, path)
        try:
            return cls({str(name): (int(one[0]), int(one[1])) for name, one in (fields or {}).items()})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise WRITERS_FORM.damaged(path, str(error)) from None

    def last(self, writer: str | None) -> int:
        return self._last.get(writer or "", (-1, 0))[0]

    def note(self, writer: str, sequence: int, now_ms: int) -> None:
        """Remember this commit, and forget who has made none for long: by the time between commits, each
        counted as a day at most, so that no step of the wall clock, and no long rest, forgets everybody."""
        before = max((at for _, at in self._last.values()), default=now_ms)
        skipped = max(0, now_ms - before - MOST_BETWEEN_COMMITS_MS)
        self._last = {name: (last, at + skipped) for name, (last, at) in self._last.items()}
        self._last[writer] = (sequence, now_ms)
        for name in [n for n, (_, at) in self._last.items() if at < now_ms - KEEP_WRITERS_MS]:
            del self._last[name]

    def save(self, files: Files, root: str) -> None:
        WRITERS_FORM.save(files, os.path.join(root, names.WRITERS), dict(sorted(self._last.items())))


def read_refusal(files: Files, path: str) -> str:
    """Return why a commit was refused, as far as the note can be read."""
    try:
        return str((REFUSED_FORM.load(files, path) or {}).get("reason", ""))
    except CorruptFileError as error:
        return error.message


def _entries(files: Files, root: str, prefixes: Sequence[str]) -> list[tuple[int, str, str]]:
    """(number, number and job, prefix) of the manifests there, ascending."""
    found = []
    for name in files.listdir(root):
        for prefix in prefixes:
            rest = name.removeprefix(prefix)
            number, dash, _ = rest.partition("-")
            if rest != name and dash and number.isdecimal() and not name.endswith(".tmp"):
                found.append((int(number), rest, prefix))
    return sorted(found)


def _forget_old(directory: LogDirectory) -> None:
    """Refusals that nobody needs any more, and what a driver that died had begun to write."""
    files, now_ms = directory.files, directory.clock.now_ms()
    for name in files.listdir(directory.path):
        begun = name.startswith(names.INBOX) and name.endswith(".tmp")
        if not begun and not name.startswith(names.REFUSED):
            continue
        path = os.path.join(directory.path, name)
        facts = files.stat(path)
        if facts is not None and facts.mtime_ms < now_ms - KEEP_REFUSED_MS:
            files.unlink(path, missing_ok=True)


class Watch:
    """A thread that takes in what comes while a directory is open to append.

    It looks at the root's time of change, a call that costs a microsecond, and lists only when that has
    moved (a rename into a directory moves it) or something was left to do.
    """

    def __init__(self, directory: LogDirectory, every_seconds: float = 0.1) -> None:
        self._directory = weakref.ref(directory)  # one that was let go without a close ends its watch
        self._every = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-inbox", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seen: int | None = None
        while not self._stop.wait(self._every):
            directory = self._directory()
            if directory is None:
                return
            seen = self._look(directory, seen)
            del directory

    def _look(self, directory: LogDirectory, seen: int | None) -> int | None:
        """One look; the root's time of change that needs no other, None if the next look must list."""
        try:
            facts = directory.files.stat(directory.path)
            changed = None if facts is None else facts.mtime_ms
            if changed == seen and not self._recent(changed):
                return seen
            if pending(directory.files, directory.path):
                take_in(directory)
            return changed
        except LastwordError as error:
            log.warning("lastword: the inbox of %s: %s", directory.path, error)
            return None

    @staticmethod
    def _recent(changed: int | None) -> bool:
        """Times of files are coarse: a change within the same tick would not show."""
        return changed is None or time.time_ns() // 1_000_000 - changed < 1000

    def close(self) -> None:
        """Returns when nothing is being taken in any more."""
        self._stop.set()
        self._thread.join()
