"""Check every invariant of a log directory, without a lock and without changes.

    every batch        length, magic, checksum; its records decode, and the header has their number
    every segment      offsets ascend, at or above its base and below the next segment's base
    offset index       each entry is the last offset and the position of a batch (of magic 0 and 1: of the
                       last and of the first message that were appended together)
    time index         each entry is the largest timestamp so far, and the last offset of the batch that
                       reached it, or (as brokers before 3.0 wrote) an offset inside it
    transaction index  it has an entry for every aborted transaction whose marker is in its segment
    checkpoints        well formed, and no offset above the log end
    leader epochs      as in the headers of the batches
    end                as in the clean stop, the synced mark and the recovery point
    identity           meta.properties and partition.metadata; one topic id for all partitions of a topic
    private files      framed with version and checksum; the staged files of waiting commits

`quick` reads the indexes and one header per batch, and checks no checksums. Its count of records excludes the
records in compressed entries of magic 0 and 1, because only decompression shows their number.

Beside a writer and a cleaner, files change during the check: a log is listed before its index is renamed, or
a marker is read before its entry is in the transaction index. So a problem is reported only after the
partition was checked again from a new view: either its files did not change during a pause and the whole
check, or `_CONFIRMED` checks in a row found the same problem. Only files with a problem are read again.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import add
from typing import TYPE_CHECKING

from lastword.clock import Clock, SystemClock
from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.errors import CorruptFileError, DataError, FileVanishedError, LastwordError, StorageError
from lastword.files import FileFacts, Files
from lastword.keys import manifest as key_manifest
from lastword.logdir.identity import read_topic_id
from lastword.partition.checkpoint_file import number, read_lines
from lastword.partition.directory_segments import DirectorySegments, read_log_start
from lastword.partition.durability import read_synced, recovery_point_of
from lastword.partition.open import expected_cuts
from lastword.partition.reads import read_again
from lastword.partition.recovery import Cut
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.segment.scan import is_zeroed
from lastword.segment.stored import SegmentId
from lastword.tools.findings import RESTORE, EpochRun, Findings, Problem
from lastword.tools.verify_log import verify_log
from lastword.values import Progress, ProgressLike, Value, plural

if TYPE_CHECKING:
    from lastword.tools.md5 import Md5Check, Md5Collision

_PAUSE_SECONDS = 0.05  # between two checks of a partition with a problem
_CONFIRMED = 5  # checks in a row that find the same problem while the files change
_CHECKS = 20  # of one partition at most


@dataclass(frozen=True, slots=True)
class TopicCheck(Value):
    """The sums of the partitions of a topic. `problems`: those of their files, without shared checkpoints."""

    topic: str
    partitions: int = 0
    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: int = 0

    def __str__(self) -> str:
        wrong = plural(self.problems, "problem") if self.problems else "sound"
        counts = f"{plural(self.batches, 'batch')}, {plural(self.records, 'record')}"
        return f"{self.topic}: {wrong}: {plural(self.partitions, 'partition')}, {counts}"


@dataclass(frozen=True, slots=True)
class Verification(Value):
    """The result of a verification. `ok` is True only if there are no problems and no collisions.

    `collisions`, if requested, are valid keys that Kafka's cleaner cannot tell apart; `keys` is the number of
    compared keys. `cuts`: the log files that the next opening to write would cut at a torn end, or remove
    behind it. `topics`: the sums of each topic.
    """

    ok: bool
    batches: int
    records: int
    read_bytes: int
    problems: tuple[Problem, ...]
    collisions: tuple[Md5Collision, ...] = ()
    keys: int = 0
    cuts: tuple[Cut, ...] = ()
    topics: tuple[TopicCheck, ...] = ()

    def __str__(self) -> str:
        text = f"{plural(self.batches, 'batch')}, {plural(self.records, 'record')}"
        if self.ok:
            return f"sound: {text}"
        shared = f", {plural(len(self.collisions), 'MD5')} shared by keys" if self.collisions else ""
        return f"{plural(len(self.problems), 'problem')}{shared} in {text}"


def verify(
    files: Files,
    roots: Iterable[str],
    partitions: Sequence[tuple[str, int, str]],
    *,
    quick: bool = False,
    md5: bool = False,
    md5_memory_bytes: int | None = None,
    progress: ProgressLike | None = None,
    clock: Clock | None = None,
) -> Verification:
    """Check the checkpoints of `roots` and the logs `partitions` (topic, partition, directory).

    Args:
        files: The storage.
        roots: Roots of log directories.
        partitions: The logs to check.
        quick: Read headers and indexes only.
        md5: Also search for keys with the same MD5.
        md5_memory_bytes: Memory of that search, besides one bit per record.
        progress: Receives the progress.
        clock: The clock. None: the system's clock.
    """
    clock = clock or SystemClock()
    started = clock.monotonic()
    findings = Findings()
    roots = list(roots)
    # Checkpoints are read before the logs: a log end only grows, so a checkpoint above it is wrong even if
    # records are appended meanwhile. (A truncation lowers it, and `_is_out_of_range` reads both again.)
    checkpoints = [
        (path, row) for root in roots for path in _checkpoints(root) for row in _rows(files, path, findings)
    ]
    first_views = [_load(files, directory) for _, _, directory in partitions]
    total = sum(segment.size for view in first_views if view is not None for segment in view.segments)
    done = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(Progress.at("verify", done, total, clock.monotonic() - started))

    views: list[PartitionView] = []
    ends: dict[tuple[str, int], int] = {}
    topics: dict[str, TopicCheck] = {}
    for (topic, _, directory), first_view in zip(partitions, first_views, strict=True):
        counts = _counts(findings)
        view = _verify_partition(files, directory, first_view, quick, findings, clock, advance)
        found = [1, *(after - before for before, after in zip(counts, _counts(findings), strict=True))]
        sums = topics.setdefault(topic, TopicCheck(topic)).to_dict()
        topics[topic] = TopicCheck(sums.pop("topic"), *map(add, sums.values(), found))
        if view is not None:
            views.append(view)
            ends[view.topic, view.partition] = view.log_end
    _verify_topic_ids(files, partitions, findings)
    for root in roots:
        _verify_root_files(files, root, findings)
    for path, row in checkpoints:
        topic, partition, offset = row
        end = ends.get((topic, partition))
        if end is None or 0 <= offset <= end:
            continue
        if _is_out_of_range(files, path, row, clock):
            findings.add(
                path,
                None,
                offset,
                "checkpoint-out-of-range",
                f"{topic}-{partition}: offset {offset} is above log end {end}",
                True,
            )
    collisions: list[Md5Collision] = []
    keys = 0
    for view in views if md5 else ():
        check = _md5_check(view, findings, md5_memory_bytes, started, clock, progress)
        if check is not None:
            collisions += check.collisions
            keys += check.keys
            findings.read_bytes += check.read_bytes
    return Verification(
        not findings.problems and not collisions,
        findings.batches,
        findings.records,
        findings.read_bytes,
        tuple(findings.problems),
        tuple(collisions),
        keys,
        tuple(findings.cuts),
        tuple(topics.values()),
    )


def _counts(findings: Findings) -> tuple[int, int, int, int]:
    return findings.batches, findings.records, findings.read_bytes, len(findings.problems)


def _load(files: Files, directory: str) -> PartitionView | None:
    """Load a view; None if that fails, which the check of the partition reports."""
    try:
        return PartitionView.load(DirectorySegments(files, directory))
    except LastwordError:
        return None


def _verify_partition(
    files: Files,
    directory: str,
    view: PartitionView | None,
    quick: bool,
    findings: Findings,
    clock: Clock,
    advance: Callable[[int], None],
) -> PartitionView | None:
    """Check one partition, and again from a new view while there is a problem and its files change.

    Args:
        files: The storage.
        directory: The partition's directory.
        view: A view of the partition; None: load it.
        quick: Read headers and indexes only.
        findings: Gets the counts of the first check and the problems that remained.
        clock: The clock.
        advance: Called with the bytes of each segment of the first check.

    Returns:
        The last checked view; None if the partition cannot be listed, or was deleted meanwhile.
    """
    valid: set[tuple[SegmentId, int]] = set()
    epochs: dict[tuple[SegmentId, int], list[EpochRun]] = {}
    repetitions: dict[tuple[str, str, int | None, int | None], int] = {}
    problems: list[Problem] = []
    before: Listing | None = None
    for attempt in range(_CHECKS):
        if attempt:
            before = _listing(files, directory)
            clock.sleep(_PAUSE_SECONDS)
            view = _load(files, directory)
        check = Findings(valid=valid, epochs=epochs)
        view, complete = _check_partition(files, directory, view, quick, check, advance)
        if attempt == 0:
            findings.batches += check.batches
            findings.records += check.records
            findings.read_bytes += check.read_bytes
            advance = _ignore
        keys = {
            (problem.file, problem.code, problem.position, problem.offset): problem
            for problem in check.problems
        }
        repetitions = {key: repetitions.get(key, 0) + 1 for key in keys}
        problems = [problem for key, problem in keys.items() if repetitions[key] >= _CONFIRMED]
        if complete and len(problems) == len(keys):
            break
        if attempt and complete and before == _listing(files, directory):
            problems = list(check.problems)
            break
    cuts = _expected_cuts(files, directory) if problems else []
    findings.cuts += cuts
    for problem in problems:
        findings.report(_with_warning(problem, cuts))
    return view


def _expected_cuts(files: Files, directory: str) -> list[Cut]:
    """Return the log files that the next opening to write would cut or remove: a torn end, and what follows.

    Empty if that opening refuses the log.
    """
    root, _ = names.root_and_name(directory)
    clean = files.exists(os.path.join(root, names.CLEAN_SHUTDOWN))
    try:
        return expected_cuts(
            files, directory, recovery_point=recovery_point_of(files, directory), clean=clean
        )
    except LastwordError:
        return []


def _with_warning(problem: Problem, cuts: Iterable[Cut]) -> Problem:
    """Return a problem with a remedy that says so if an opening to write cuts off the damaged bytes."""
    is_cut = any(
        cut.file == problem.file and (problem.position or 0) >= (cut.left_bytes or 0) for cut in cuts
    )
    if not is_cut or problem.remedy != RESTORE:
        return problem
    return replace(
        problem,
        remedy=f"{RESTORE} before the log is opened to write: its last stop was not clean, so an opening "
        "cuts off this batch and everything after it",
    )


def _check_partition(
    files: Files,
    directory: str,
    view: PartitionView | None,
    quick: bool,
    check: Findings,
    advance: Callable[[int], None],
) -> tuple[PartitionView | None, bool]:
    """Check a partition once; return the view, and False if a listed file vanished."""
    try:
        if view is None:
            view = PartitionView.load(DirectorySegments(files, directory))
        complete = verify_log(view, quick, check, advance)
        _verify_tail(files, view, check)
        # A log end that differs from the clean stop, the synced mark or the recovery point. No checksum
        # covers the base offset of a batch, so a wrong base offset of the last batch shows only here.
        if view.damage is not None:
            check.add_error(view.damage, directory)
        _verify_names(files, view, check)
        _verify_epochs(files, view, check)
        _verify_partition_files(files, directory, check)
        return view, complete
    except FileVanishedError as error:
        if files.is_dir(directory):
            check.add(directory, None, None, "unreadable", error.message, False)
            return view, False
        return None, True  # the topic was deleted meanwhile
    except DataError as error:
        check.add_error(error, directory)
    except LastwordError as error:
        check.add(directory, None, None, "unreadable", error.message, False)
    return None, True


Listing = list[tuple[str, FileFacts | None]]


def _listing(files: Files, directory: str) -> Listing | None:
    """List the files of a partition with their facts; None if the drive fails."""
    try:
        return [(name, files.stat(os.path.join(directory, name))) for name in files.listdir(directory)]
    except StorageError:
        return None


def _ignore(size_bytes: int) -> None:
    pass


def _is_out_of_range(files: Files, path: str, row: tuple[str, int, int], clock: Clock) -> bool:
    """Read a checkpoint and the log end again.

    A truncation, or a new topic of the same name, lowers both, one after the other.
    """
    topic, partition, _ = row
    directory = os.path.join(os.path.dirname(path), names.partition_dir(topic, partition))
    for _ in range(_CONFIRMED):
        clock.sleep(_PAUSE_SECONDS)
        offsets = [
            row_now[2] for row_now in _rows(files, path, Findings()) if row_now[:2] == (topic, partition)
        ]
        view = _load(files, directory)
        if view is None or all(0 <= offset <= view.log_end for offset in offsets):
            return False
    return True


def _md5_check(
    view: PartitionView,
    findings: Findings,
    memory_bytes: int | None,
    started: float,
    clock: Clock,
    progress: ProgressLike | None,
) -> Md5Check | None:
    """Compare the keys of a log by MD5; None, and a new problem, if not all keys can be read."""
    from lastword.tools.md5 import md5_collisions

    size = view.segment_set.size

    def report_progress(done: int) -> None:
        if progress is not None:
            progress(Progress.at("compare keys", done, size, clock.monotonic() - started))

    memory = memory_bytes or DEFAULT_MAP_BYTES
    try:
        return read_again(
            lambda: md5_collisions(view, memory_bytes=memory, progress=report_progress), view.refresh
        )
    except FileVanishedError:
        text = "cleanings replaced its files too often"
        findings.add(view.directory, None, None, "unreadable", text, False)
    except DataError as error:
        text = f"its keys were not compared: {error.message}"
        findings.add(error.file or view.directory, error.position, error.offset, error.code, text, False)
    return None


def _checkpoints(root: str) -> list[str]:
    kinds = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.FIRST_DIRTY)
    return [os.path.join(root, name) for name in kinds]


def _rows(files: Files, path: str, findings: Findings) -> list[tuple[str, int, int]]:
    try:
        return [(row[0], number(row[1], path), number(row[2], path)) for row in read_lines(files, path, 3)]
    except CorruptFileError as error:
        findings.add(path, None, None, "bad-checkpoint", error.message, True)
        return []


def _verify_tail(files: Files, view: PartitionView, findings: Findings) -> None:
    """Report bytes after the last valid batch.

    They are an unfinished append of a killed process, unless a writer is appending them.
    """
    last = view.active
    facts = last.stored.facts() if last is not None else None
    if last is None or facts is None or facts.id.size <= last.size or facts.id.number != last.id.number:
        return
    file_size = facts.id.size
    if view.damage is not None:
        return  # `_check_partition` reports it: no torn tail
    with files.open_read(last.file) as handle:
        if is_zeroed(handle, last.size, file_size):
            return  # room for appends, of a killed writer or preallocated by Kafka
    try:
        now = PartitionView.load(view.store)
    except LastwordError:
        return  # the partition is changing
    if now.log_end == view.log_end:
        findings.add(
            last.file,
            last.size,
            None,
            "incomplete-batch",
            f"{file_size - last.size} bytes after the last sound batch",
            True,
        )


def _verify_names(files: Files, view: PartitionView, findings: Findings) -> None:
    """Report indexes of a segment without its log.

    Opening to append removes these indexes; after that, nothing shows that the segment is missing.
    """
    parsed = [p for p in map(names.parse_segment_file, files.listdir(view.directory)) if p is not None]
    logs = {p.base_offset for p in parsed if p.extension == names.LOG}
    orphans: dict[int, str] = {}
    for p in parsed:
        if p.extension in names.SEGMENT_EXTENSIONS and not p.suffix and p.base_offset not in logs:
            orphans.setdefault(p.base_offset, p.name)
    if not orphans:
        return
    log_start = read_log_start(files, view.directory)
    durable = max(read_synced(files, view.directory), recovery_point_of(files, view.directory))
    first = min(logs, default=0)
    for base, name in sorted(orphans.items()):
        following = min((log for log in logs if log > base), default=None)
        if following is not None and following <= log_start:
            continue  # retention was interrupted when it removed the segment
        lost = (following is not None and base >= log_start) or base < max(durable, first)
        path = os.path.join(view.directory, names.segment_file(base, names.LOG))
        text = f"it is missing, but its index exists ({name})"
        findings.add(path, None, base, "missing-log", text, not lost)


def _verify_epochs(files: Files, view: PartitionView, findings: Findings) -> None:
    """Report entries that do not ascend, and entries that contradict the headers of batches.

    The second check is skipped if a broker has ever opened the directory: a broker drops entries that
    conflict with its own epochs, and keeps the batches.
    """
    path = os.path.join(view.directory, names.LEADER_EPOCHS)
    try:
        entries = [(number(start, path), number(epoch, path)) for epoch, start in read_lines(files, path, 2)]
    except CorruptFileError:
        return  # `_verify_partition_files` reports it
    if not entries:
        return
    if entries != sorted(entries) or len({epoch for _, epoch in entries}) < len(entries):
        findings.add(path, None, None, "bad-epochs", "the entries do not ascend", False)
        return
    if files.exists(os.path.join(os.path.dirname(os.path.normpath(view.directory)), names.HIGH_WATERMARKS)):
        return
    starts = [start for start, _ in entries]
    for segment in view.segments:
        for run in findings.epochs.get((segment.id, segment.mtime_ms), ()):
            for offset in (max(run.first, view.log_start), max(run.last, view.log_start)):
                place = bisect_right(starts, offset) - 1
                epoch = entries[place][1] if place >= 0 else None
                if epoch != run.epoch:
                    text = (
                        f"offset {offset} has epoch {epoch} in this file, but {run.epoch} in {segment.file}"
                    )
                    findings.add(path, None, offset, "bad-epochs", text, False)
                    return


def _verify_topic_ids(files: Files, partitions: Sequence[tuple[str, int, str]], findings: Findings) -> None:
    """Report partitions whose topic id differs from that of most partitions of the topic; if tied, all."""
    ids: dict[str, dict[str, str]] = {}
    for topic, _, directory in partitions:
        try:
            topic_id = read_topic_id(files, directory)
        except LastwordError:
            continue  # reported with the partition
        if topic_id is not None:
            ids.setdefault(topic, {})[os.path.join(directory, names.PARTITION_METADATA)] = topic_id
    for topic, of_topic in ids.items():
        (most, count), *others = Counter(of_topic.values()).most_common()
        tie = bool(others) and others[0][1] == count
        for path, topic_id in of_topic.items():
            if others and (tie or topic_id != most):
                text = f"topic id {topic_id}; other partitions of {topic} have another id"
                findings.add(path, None, None, "topic-id", text, False)


def _verify_root_files(files: Files, root: str, findings: Findings) -> None:
    """Check identity and private files of a root, and the staged files of pending commits."""
    try:
        listing = files.listdir(root)
    except LastwordError:
        return  # the directory is offline
    for name in listing:
        path = os.path.join(root, name)
        if name == names.META_PROPERTIES or (name.startswith(names.PRIVATE) and not name.endswith(".tmp")):
            before = len(findings.problems)
            _verify_small_file(files, path, findings)
            if len(findings.problems) == before and name.startswith((names.INBOX, names.APPLYING)):
                _verify_staged(files, root, path, findings)


def _verify_staged(files: Files, root: str, path: str, findings: Findings) -> None:
    """Check the staged files of a commit, unless it was applied meanwhile."""
    from lastword.ingest import staging

    try:
        manifest = staging.CommitManifest.decoded(files.read_bytes(path), path)
        is_begun = files.exists(os.path.join(root, names.BEGUN)) and names.APPLYING in path
        for staged in staging.needed_files(files, root, manifest, is_begun=is_begun):
            try:
                staging.check(files, [staged])
            except DataError as error:
                if files.exists(path):
                    remedy = (
                        "run the job again; the commit is refused when the directory is next opened to write"
                    )
                    file = error.file or path
                    findings.report(
                        Problem(file, error.position, None, "bad-commit", error.message, False, remedy)
                    )
    except LastwordError:
        return  # the commit was applied or withdrawn


def _verify_partition_files(files: Files, directory: str, findings: Findings) -> None:
    """Check snapshots, leader epochs, identity and private files with the checks of `dump`."""
    for name in files.listdir(directory):
        parsed = names.parse_segment_file(name)
        is_snapshot = parsed is not None and parsed.extension == names.SNAPSHOT and not parsed.suffix
        if name in (names.LEADER_EPOCHS, names.PARTITION_METADATA) or is_snapshot:
            _verify_small_file(files, os.path.join(directory, name), findings)
    private = os.path.join(directory, names.PRIVATE)
    if not files.exists(private):
        return
    runs = _runs_of_index(files, directory)
    for name in files.listdir(private):
        path = os.path.join(private, name)
        if name.endswith(".tmp") or name.startswith(names.REWRITE_PREFIX):
            continue  # unfinished: nothing reads it
        if key_manifest.is_run(name) and name not in runs:
            continue  # unfinished, or replaced: a merge of large runs writes for seconds
        if not files.is_dir(path):
            _verify_small_file(files, path, findings)
            continue
        try:
            for below in files.listdir(path):
                if below.endswith((".json", ".npz")) and not files.is_dir(os.path.join(path, below)):
                    _verify_small_file(files, os.path.join(path, below), findings)
        except FileVanishedError:
            continue  # the commit was applied, or the files were removed


def _runs_of_index(files: Files, directory: str) -> set[str]:
    """Return the names of the runs of the saved key index. Nothing reads another run."""
    with suppress(LastwordError):  # the check of the manifest reports it
        manifest = key_manifest.load(files, directory)
        if manifest is not None:
            return {name for name, _ in manifest.runs}
    return set()


def _verify_small_file(files: Files, path: str, findings: Findings) -> None:
    from lastword.tools.dump import dumper_of, entries_of

    dumper = dumper_of(path)
    try:
        for entry in entries_of(files, path) if dumper is None else dumper(files, path, True):
            if isinstance(entry, Problem):
                findings.report(entry)
    except FileVanishedError:
        pass
    except LastwordError as error:
        findings.add(path, None, None, "unreadable", error.message, False)
