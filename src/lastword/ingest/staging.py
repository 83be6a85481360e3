"""The files of a commit: staged batches, and one manifest in the root of the log directory.

A writer stages record batches that wait for the commit, with base offset 0 in each. The batches of many
partitions are in one shared file, one run after another, so that a writer of thousands of small partitions
makes one file. Many batches of one partition get a file of their own, which may become a segment:

    <root>/lastword.staged-<commit>-<order>-<copy>              shared: runs of batches of many partitions
    <partition>/lastword/staging-<commit>/<order>-<copy>.batches  batches of the partition
    <partition>/lastword/committed-<commit>                     the partition has ingested its own files
    <partition>/lastword/open-<commit>                          writers may still stage (in one partition)

Several writers may prepare the same files (a retry, a speculative copy). Each writes files of its own, and a
manifest names the files of one copy, so the files of a writer that was lost are never ingested. A file is
valid when a manifest names it. It is durable, if the commit is to be, before a manifest names it. An abort
removes staged files and never a record.

A commit is made or aborted while its writers may still run. So the commit and the abort first remove the
`open` mark and then the staged files, and a writer first stages and then checks the mark: the later of the
two removes the files.

A writer that is killed removes nothing. Its staged files are removed an hour after the last sign of life of
the commit in any partition. Each writer that is still staging gives such a sign every ten minutes, also while
it waits for its input. If no writer of a commit runs for an hour, and the commit is made afterwards, it is
refused: a staged file is missing, and nothing is appended.

A *manifest* is one commit: it names staged files in any number of partitions. Renaming it to its `inbox` name
is the commit: from then on it is ingested completely, after any crash.

```
<root>/lastword.inbox-<number>-<commit>       waits; numbers rise, the lowest is ingested first
<root>/lastword.applying-<number>-<commit>    is being ingested by the process that holds the lock
<root>/lastword.committed-<commit>            was ingested; for an hour, if the commit has no name
<root>/lastword.refused-<number>-<commit>     was refused; its text holds the reason
<root>/lastword.writers                       the last sequence of each named writer that was ingested
```

All of these are plain files: a broker does not start with an unknown directory in the root.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from lastword.config import TopicConfig
from lastword.errors import CorruptFileError, FileTakenError, FileVanishedError, StorageError
from lastword.files import Files, Handle, overlapped
from lastword.files.framed import Framed
from lastword.partition.appending import check_sizes, largest_batch
from lastword.partition.staged_batches import STAGING, Block, blocks_of, discard, staging_dir
from lastword.segment import names
from lastword.wire import INT64_MAX

# ---------------------------------------------------------------- staged files


COMMITTED, OPEN = "committed-", "open-"
BATCHES = ".batches"
KEEP_MARKS_MS = 7 * 24 * 3600 * 1000
"""The marks of a commit in a partition are kept for this long."""

KEEP_STAGED_MS = 3600 * 1000
"""Staged files of a commit that was never made are kept for this long after its last sign of life, in any
partition: a new staged file, or `keep_alive`."""

ALIVE_EVERY_SECONDS = 600
"""How often a writer that is still staging calls `keep_alive`."""

OWN_FILE_BYTES = 256 << 10
"""A writer stages this many bytes of one partition in a file of its own, which may become a segment. Fewer
bytes go to its shared file: making, syncing and removing a file costs as much as copying them."""

WRITEBACK_BYTES = 4 << 20
"""The drive begins to write after each block of this size, while the writer continues."""


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Batches of one partition that one writer staged: a part of its shared file, or a file of their own.

    A partition's runs are ingested in ascending `order`, those of one writer as it staged them.

    Attributes:
        topic: The topic.
        partition: The partition.
        order: Place of the writer.
        name: Name of the file.
        size_bytes: Bytes of the batches.
        records: Number of records.
        position: Where the run begins in the shared file; None: the file has no other runs.
    """

    topic: str
    partition: int
    order: int
    name: str
    size_bytes: int
    records: int
    position: int | None = None


def committed_mark(directory: str, commit_id: str) -> str:
    """Return the path of the mark of a partition that has ingested a commit."""
    return f"{_private_dir(directory)}/{COMMITTED}{commit_id}"


def is_committed(files: Files, root: str, commit_id: str) -> bool:
    """Return whether a commit without a name was ingested, as far as its mark is kept."""
    return files.exists(os.path.join(root, names.COMMITTED + commit_id))


def mark_committed(files: Files, root: str, commit_id: str) -> None:
    """Note durably that a commit without a name was ingested, so that its repetition adds nothing."""
    files.write_atomic(os.path.join(root, names.COMMITTED + commit_id), b"")


def open_staging(files: Files, directory: str, commit_id: str) -> None:
    """Allow writers to stage for a commit. `directory`: the partition that gets the mark."""
    private = _private_dir(directory)
    _make_dir(files, private)
    files.open_append(os.path.join(private, OPEN + commit_id), create=True).close()


def is_staging_open(files: Files, directory: str, commit_id: str) -> bool:
    """Return whether writers may still stage for a commit."""
    return files.exists(os.path.join(_private_dir(directory), OPEN + commit_id))


def close_staging(files: Files, directory: str, commit_id: str) -> None:
    """Make writers of the commit remove what they stage from now on."""
    files.unlink(os.path.join(_private_dir(directory), OPEN + commit_id), missing_ok=True)


class _BatchFile:
    """A staged file, which is created with the first batches."""

    def __init__(self, files: Files, path: str) -> None:
        self.size_bytes = 0
        self._files = files
        self._path = path
        self._handle: Handle | None = None
        self._writeback_to = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self._handle is None

    def write(self, data: bytes | memoryview) -> None:
        """Append whole batches."""
        if self._handle is None:
            self._handle = self._files.open_append(self._path, create=True, exclusive=True)
        self._handle.append(data)
        self.size_bytes += len(data)
        # The file is synced soon: when it is closed, or when it becomes a segment.
        if self.size_bytes - self._writeback_to >= WRITEBACK_BYTES:
            self._handle.start_sync(self._writeback_to, self.size_bytes - self._writeback_to)
            self._writeback_to = self.size_bytes

    def close(self, sync: bool) -> None:
        """Close the file, which has batches; with `sync`, its bytes survive a power cut."""
        assert self._handle is not None
        with self._handle:
            if sync:
                self._handle.fsync()

    def remove(self) -> None:
        """Remove the file."""
        if self._handle is not None:
            self._handle.close()
            self._files.unlink(self._path, missing_ok=True)


class StagedWriter:
    """Write one staged file of one partition.

    Args:
        order: Place among the commit's writers.
        copy: Distinguishes writers of the same `order`.
    """

    def __init__(
        self, files: Files, root: str, topic: str, partition: int, commit_id: str, order: int, copy: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = 0
        self._files = files
        self._private = _private_dir(os.path.join(root, names.partition_dir(topic, partition)))
        self._directory = os.path.join(self._private, STAGING + commit_id)
        self._order = order
        self._name = f"{order:05d}-{copy}{BATCHES}"
        self._file = _BatchFile(files, os.path.join(self._directory, self._name))

    def write(self, data: bytes | memoryview, records: int) -> None:
        """Append whole batches."""
        if self._file.is_empty:
            for directory in (self._private, self._directory):
                _make_dir(self._files, directory)
        self._file.write(data)
        self.records += records

    def close(self, sync: bool) -> StagedRun | None:
        """Close the file; None if nothing was written. With `sync`, the batches survive a power cut."""
        if self._file.is_empty:
            return None
        self._file.close(sync)
        if sync:
            for directory in (self._directory, self._private, os.path.dirname(self._private)):
                self._files.fsync_dir(directory)
        size_bytes = self._file.size_bytes
        return StagedRun(self.topic, self.partition, self._order, self._name, size_bytes, self.records)

    def remove(self) -> None:
        """Remove the file."""
        if not self._file.is_empty:
            self._file.remove()
            with contextlib.suppress(StorageError):  # it holds other writers' files, or is gone
                self._files.rmdir(self._directory)


class SharedWriter:
    """Write one staged file with the batches of many partitions.

    Args:
        order: Place among the commit's writers.
        copy: Distinguishes writers of the same `order`.
    """

    def __init__(self, files: Files, root: str, commit_id: str, order: int, copy: int) -> None:
        self._files = files
        self._root = root
        self._order = order
        self._name = f"{names.STAGED}{commit_id}-{order:05d}-{copy}"
        self._file = _BatchFile(files, os.path.join(root, self._name))
        self._runs: list[StagedRun] = []

    def write(self, topic: str, partition: int, data: bytes | memoryview, records: int) -> None:
        """Append whole batches of one partition."""
        position = self._file.size_bytes
        self._file.write(data)
        run = StagedRun(topic, partition, self._order, self._name, len(data), records, position)
        self._runs.append(run)

    def close(self, sync: bool) -> tuple[StagedRun, ...]:
        """Close the file and return its runs. With `sync`, the batches survive a power cut."""
        if not self._file.is_empty:
            self._file.close(sync)
            if sync:
                self._files.fsync_dir(self._root)
        return tuple(self._runs)

    def remove(self) -> None:
        """Remove the file."""
        self._file.remove()


def _private_dir(directory: str) -> str:
    return f"{directory}/{names.PRIVATE}"


def _make_dir(files: Files, path: str) -> None:
    """Make a directory that another process may be making at the same time."""
    if not files.exists(path):
        with contextlib.suppress(FileTakenError):
            files.mkdir(path)


class StagedPath(NamedTuple):
    """A staged file that a commit needs.

    Attributes:
        path: Its path.
        runs: Its runs, one behind the other.
        may_be_gone: It may have become a segment.
    """

    path: str
    runs: tuple[StagedRun, ...]
    may_be_gone: bool = False

    def check(self, files: Files) -> None:
        """Verify the size. CorruptFileError if the file is not as its writer left it."""
        facts = files.stat(self.path)
        if facts is None and self.may_be_gone:
            return
        if facts is None or facts.size != sum(run.size_bytes for run in self.runs):
            raise CorruptFileError(
                f"{self.path} is not as its writer left it; nothing was appended",
                remedy="run the job again",
                file=self.path,
            )

    def check_batches(self, files: Files, config_of: Callable[[str], TopicConfig] | None = None) -> None:
        """Verify the checksums of all batches. CorruptBatchError for a byte that changed.

        With `config_of`, which returns the settings of a topic: RecordTooLargeError for a batch that its
        topic does not allow now.
        """
        if not files.exists(self.path):
            return  # it was verified before it became a segment
        least = INT64_MAX
        if config_of is not None:
            least = min(largest_batch(config_of(topic)) for topic in {run.topic for run in self.runs})
        position = 0
        for block in blocks_of(files, self.path):
            block.check(self.path)
            if config_of is not None and max(block.sizes) > least:
                self._check_sizes(block, position, config_of)
            position += block.size_bytes

    def _check_sizes(self, block: Block, position: int, config_of: Callable[[str], TopicConfig]) -> None:
        """`position`: of the block in the file."""
        ends = list(accumulate(run.size_bytes for run in self.runs))
        for batch in block:
            run = self.runs[bisect_right(ends, position)]
            check_sizes((batch,), config_of(run.topic), f"{run.topic}-{run.partition}")
            position += len(batch)


def needed_files(files: Files, root: str, manifest: CommitManifest, *, is_begun: bool) -> list[StagedPath]:
    """Return the staged files that a commit still needs.

    Partitions that have ingested their own files are left out. `is_begun`: an earlier try noted log ends.
    """
    shared: dict[str, list[StagedRun]] = {}
    needed: list[StagedPath] = []
    marked: dict[str, bool] = {}
    for run in manifest.runs:
        if run.position is not None:
            shared.setdefault(run.name, []).append(run)
            continue
        directory = os.path.join(root, names.partition_dir(run.topic, run.partition))
        folder = staging_dir(directory, manifest.commit_id)
        if directory not in marked:
            marked[directory] = files.exists(committed_mark(directory, manifest.commit_id))
        if not marked[directory]:
            needed.append(StagedPath(os.path.join(folder, run.name), (run,), is_begun))
    return [*(StagedPath(os.path.join(root, name), tuple(runs)) for name, runs in shared.items()), *needed]


def check(
    files: Files,
    needed: Sequence[StagedPath],
    *,
    threads: int | None = None,
    config_of: Callable[[str], TopicConfig] | None = None,
) -> None:
    """Verify sizes and checksums of all staged files of a commit.

    All are verified before the first partition is appended to: a commit that is refused adds nothing.
    CorruptFileError or CorruptBatchError for a file that is not as its writer left it. `config_of`: as of
    `StagedPath.check_batches`.
    """
    for staged in needed:
        staged.check(files)
    overlapped(lambda staged: staged.check_batches(files, config_of), needed, threads=threads)


def keep_alive(files: Files, root: str, commit_id: str, now_ms: int) -> None:
    """Give a sign of life of a commit that has staged files in the log directory."""
    for path in _staged_paths(files, root, commit_id):
        with contextlib.suppress(StorageError):  # a copy of this writer removed it
            files.set_mtime(path, now_ms)
            return


def discard_all(files: Files, root: str, commit_id: str, partitions: Iterable[tuple[str, int]]) -> None:
    """Remove all staged files of a commit, which is complete, refused or aborted."""
    for name in files.listdir(root):
        if _commit_of(name) == commit_id:
            files.unlink(os.path.join(root, name), missing_ok=True)
    for topic, partition in partitions:
        discard(files, os.path.join(root, names.partition_dir(topic, partition)), commit_id)


def remove_old(
    files: Files,
    directory: str,
    now_ms: int,
    is_abandoned: Callable[[str], bool],
    listing: Iterable[str] | None = None,
) -> None:
    """Remove from a partition old marks, and staged files of commits that were never made.

    Args:
        files: The storage.
        directory: The partition.
        now_ms: The time.
        is_abandoned: See `is_abandoned`; called with commit ids of which the partition has old files.
        listing: The names in the private directory of the partition, as they were not long ago: a name that
            is new is not old. None: it is listed.
    """
    private = _private_dir(directory)
    if listing is None:
        try:
            listing = files.listdir(private)
        except FileVanishedError:
            return
    for name in listing:
        if not name.startswith((STAGING, COMMITTED, OPEN)):
            continue
        path, commit_id = f"{private}/{name}", name.partition("-")[2]
        is_staged = name.startswith(STAGING)
        facts = files.stat(path)
        if facts is None or facts.mtime_ms > now_ms - (KEEP_STAGED_MS if is_staged else KEEP_MARKS_MS):
            continue
        try:
            if not is_staged:
                files.unlink(path, missing_ok=True)
            elif is_abandoned(commit_id):
                files.remove_tree(path)
        except FileVanishedError:
            continue


def remove_old_shared(files: Files, root: str, now_ms: int) -> None:
    """Remove from the root the shared files of commits that were never made."""
    for name in files.listdir(root):
        commit_id = _commit_of(name)
        if commit_id is None:
            continue
        path = os.path.join(root, name)
        facts = files.stat(path)
        if facts is None or facts.mtime_ms > now_ms - KEEP_STAGED_MS:
            continue
        if is_abandoned(files, root, commit_id, now_ms):
            files.unlink(path, missing_ok=True)


def is_abandoned(files: Files, root: str, commit_id: str, now_ms: int) -> bool:
    """Return whether a commit was never made, and gave no sign of life for too long."""
    facts = [files.stat(path) for path in _staged_paths(files, root, commit_id)]
    if any(each is not None and each.mtime_ms > now_ms - KEEP_STAGED_MS for each in facts):
        return False
    # Listed now: the commit may have been made while this process ingested another.
    return commit_id not in pending_commits(files, root)


def _staged_paths(files: Files, root: str, commit_id: str) -> Iterator[str]:
    """Yield the shared files of a commit, and the directories of its other staged files."""
    for name in files.listdir(root):
        if _commit_of(name) == commit_id:
            yield os.path.join(root, name)
        elif names.parse_partition_dir(name) is not None:
            path = staging_dir(os.path.join(root, name), commit_id)
            if files.exists(path):
                yield path


def _commit_of(name: str) -> str | None:
    """Return the commit id in the name of a shared file; None for another file."""
    rest = name.removeprefix(names.STAGED)
    return None if rest == name else rest.rsplit("-", 2)[0]


# ---------------------------------------------------------------- manifests and named writers


KEEP_WRITERS_MS = 30 * 24 * 3600 * 1000
"""A writer that commits nothing for this long is removed."""
MOST_BETWEEN_COMMITS_MS = 24 * 3600 * 1000
"""The most that counts as time between two commits, of any writers."""
_FORMAT = 3

WRITERS_FORM = Framed(
    "writers",
    1,
    "bad-writers",
    "restore the file from a copy; without it, which batches were written is not known",
)
REFUSED_FORM = Framed("refused", 1, "bad-note", "remove the file: it only says why a commit was refused")


@dataclass(frozen=True, slots=True)
class CommitManifest:
    """One commit. `writer` and `sequence` name it for ever (a streaming query and its batch), or are None.

    sync   the records are durable when the commit is ingested; always true of a commit with a writer
    """

    commit_id: str
    runs: tuple[StagedRun, ...]
    sync: bool
    writer: str | None = None
    sequence: int | None = None

    def encoded(self) -> bytes:
        """Return the bytes of the file: a CRC-32 and JSON, which calls the commit `job`."""
        staged: dict[tuple[int, str], list[tuple[str, int, int, int]]] = {}
        for run in self.runs:
            fields_of_run = (run.topic, run.partition, run.size_bytes, run.records)
            staged.setdefault((run.order, run.name), []).append(fields_of_run)
        fields = {
            "format": _FORMAT,
            "job": self.commit_id,
            "files": [{"task": order, "name": name, "runs": runs} for (order, name), runs in staged.items()],
            "sync": self.sync,
            "writer": self.writer,
            "sequence": self.sequence,
        }
        body = json.dumps(fields, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(body), body)

    @classmethod
    def decoded(cls, data: bytes, file: str) -> CommitManifest:
        """Parse the bytes of a file. CorruptFileError if they are no manifest."""
        body = data.partition(b" ")[2].removesuffix(b"\n")
        try:
            if data != b"%08x %s\n" % (zlib.crc32(body), body):
                raise ValueError("its checksum differs")
            fields = json.loads(body)
            if fields.pop("format") != _FORMAT:
                raise ValueError("another version wrote it")
            runs = [run for staged in fields.pop("files") for run in _runs_of(**staged)]
            return cls(fields.pop("job"), tuple(runs), **fields)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptFileError(
                f"{file} is no commit: {error}",
                code="bad-commit",
                remedy="remove it, and run the job again",
                file=file,
            ) from None


def _runs_of(task: int, name: str, runs: Iterable[tuple[str, int, int, int]]) -> Iterator[StagedRun]:
    """Yield the runs of a shared file, which follow each other without a gap, or a file of each partition."""
    is_shared, position = name.startswith(names.STAGED), 0
    for topic, partition, size_bytes, records in runs:
        place = position if is_shared else None
        yield StagedRun(topic, partition, task, name, size_bytes, records, place)
        position += size_bytes


class Writers:
    """The last ingested sequence of each named writer, in one small file of the root."""

    def __init__(self, last: dict[str, tuple[int, int]]) -> None:
        self._last = last  # writer -> (sequence, time of the commit in ms)

    @classmethod
    def load(cls, files: Files, root: str) -> Writers:
        """Read the file.

        CorruptFileError if it is damaged: taking a writer for new could append its batch twice.
        """
        path = os.path.join(root, names.WRITERS)
        fields = WRITERS_FORM.load(files, path)
        try:
            return cls({str(name): (int(entry[0]), int(entry[1])) for name, entry in (fields or {}).items()})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise WRITERS_FORM.damaged(path, str(error)) from None

    def last(self, writer: str | None) -> int:
        """Return the last sequence of a writer, or -1."""
        return self._last.get(writer or "", (-1, 0))[0]

    def has_written(self, topic: str, producer: str) -> bool:
        """Return whether a producer has written to a topic of this name, whether or not it still exists."""
        return any(name.startswith(f"{topic}/") and name.endswith(f"/{producer}") for name in self._last)

    def note(self, writer: str, sequence: int, now_ms: int) -> None:
        """Set the writer's last sequence, and remove writers that have been idle too long.

        Idle time is the time between commits, of which each interval counts as nothing at least and as a day
        at most. So neither a step of the wall clock nor a long pause of all writers removes a writer.
        """
        before = max((at_ms for _, at_ms in self._last.values()), default=now_ms)
        skipped = now_ms - before - min(max(0, now_ms - before), MOST_BETWEEN_COMMITS_MS)
        self._last = {name: (last, at_ms + skipped) for name, (last, at_ms) in self._last.items()}
        self._last[writer] = (sequence, now_ms)
        for name in [n for n, (_, at_ms) in self._last.items() if at_ms < now_ms - KEEP_WRITERS_MS]:
            del self._last[name]

    def save(self, files: Files, root: str) -> None:
        """Replace the file."""
        WRITERS_FORM.save(files, os.path.join(root, names.WRITERS), dict(sorted(self._last.items())))


class InboxEntry(NamedTuple):
    """A manifest's file in the root. `name`: number and commit id; `prefix`: its state."""

    number: int
    name: str
    prefix: str

    @property
    def commit_id(self) -> str:
        """The id of the commit."""
        return self.name.partition("-")[2]


def entries(files: Files, root: str) -> list[InboxEntry]:
    """List the manifests of the root, in the order of their numbers."""
    listed = []
    for name in files.listdir(root):
        if name[: len(names.OURS)] != names.OURS:  # that of a partition
            continue
        for prefix in (names.INBOX, names.APPLYING):
            rest = name.removeprefix(prefix)
            number, dash, _ = rest.partition("-")
            if rest != name and dash and number.isdecimal() and not name.endswith(".tmp"):
                listed.append(InboxEntry(int(number), rest, prefix))
    return sorted(listed)


def pending(files: Files, root: str) -> bool:
    """Return whether a commit waits, or is partly ingested."""
    return bool(entries(files, root))


def pending_commits(files: Files, root: str) -> set[str]:
    """Return the ids of the commits that wait, or are partly ingested."""
    return {entry.commit_id for entry in entries(files, root)}


def next_number(files: Files, root: str, now_ms: int) -> int:
    """Return a number above all others in the inbox.

    So commits keep their order after a step of the clock.
    """
    return max([now_ms, *(entry.number + 1 for entry in entries(files, root))])


def read_refusal(files: Files, path: str) -> str:
    """Return the reason of a refusal, as far as the file can be read."""
    try:
        return str((REFUSED_FORM.load(files, path) or {}).get("reason", ""))
    except CorruptFileError as error:
        return error.message
