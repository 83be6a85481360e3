"""Publish a rewritten segment in place of its sources: every crash leaves the old log or the new one.

One group at a time: sources S0 < S1 < ... (neighbours), one output N with the base offset of S0. N was built
and synced in a private directory and covers the whole range of the group, because its last batch is kept, if
need be empty. Only messages of magic 0 and 1 leave nothing behind, so N may end below the sources. Sources
that are wholly behind N's end are not hidden by N.swap; they are removed one by one, oldest first, the
directory synced before each. A crash then leaves the newest of them: a record that returns in one of them
returns with the newer record, or the tombstone, that has superseded it.

```
step                                   on disk, in the partition's directory        a crash here leaves
0                                      S0 S1          (N private)                   old; N is waste
1  N's files -> .cleaned, fsync dir    S0 S1          N.cleaned (some or all)       old; .cleaned removed
2  .cleaned -> .swap, fsync dir        S0 S1          N part .cleaned, part .swap   old; both removed
3                                      S0 S1          N.swap                        NEW: sources go, N renamed
4  sources -> .deleted, fsync dir      S0.deleted S1  N.swap                        NEW: likewise
5  .swap -> final names, fsync dir     S0.deleted ..  N.log N.index.swap ..         NEW: the rest renamed
6  unlink .deleted                     S1.deleted     N                             NEW: .deleted removed
```

Why this order of syncs. Names may become durable in any order between two syncs of the directory. Before 2 is
synced no source is touched, so a `.cleaned` that exists proves that all sources do. The sync between 4 and 5
prevents a final N.log that is durable beside a source which it replaces, where no rule could choose. The sync
before 6 leaves nothing of the swap to do when it returns, whatever the caller records then.

Only one group is swapped at a time: Kafka's recovery takes every `.swap` at or above the lowest `.cleaned`
for unfinished, so a second group's `.cleaned` would cost the first its data.

**The rule for reading a listing** (`decide`), the same for recovery and for readers without a lock: a `.swap`
log stands for [its base offset, its next offset) and hides every other log that begins there, unless it must
be undone. It must be undone if there is a `.cleaned` at or below it, or it is damaged or empty, and all its
sources exist under their own names. A `.swap` whose sources are already `.deleted` is finished in any case:
undoing it would lose its range. (Kafka undoes it when an older `.cleaned` was left behind, and loses the
range.) Snapshots are never deleted by range.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lastword.errors import DataError, FileVanishedError
from lastword.files import Files
from lastword.segment import names
from lastword.segment.names import CLEANED, DELETED, LOG, SEGMENT_EXTENSIONS, SNAPSHOT, SWAP, SegmentFile
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles

# ---------------------------------------------------------------- publish


def publish(files: Files, directory: str, sources: Sequence[Segment], output: Segment) -> Segment:
    """Put `output`, a complete and synced segment in a private directory, in the place of `sources`.

    The caller holds the partition's lock and has made sure that the sources are the log's own, neighbours and
    closed. Returns the segment under its final name. An error in between leaves a state that `recover`
    resolves.
    """
    _check(sources, output)
    # The directory is not listed: a cleaning may publish as many outputs as the log has segments.
    old = [(source.base_offset, _extensions(files, directory, source)) for source in sources]
    built_in = os.path.dirname(output.file)
    private = set(files.listdir(built_in))
    base = output.base_offset
    extensions = [e for e in SEGMENT_EXTENSIONS if names.segment_file(base, e) in private]
    for extension in extensions:
        source = os.path.join(built_in, names.segment_file(base, extension))
        files.rename(source, os.path.join(directory, names.segment_file(base, extension, CLEANED)))
    files.fsync_dir(directory)
    for extension in extensions:
        _move(files, directory, base, extension, CLEANED, SWAP)
    files.fsync_dir(directory)
    end = max(output.next_offset, base + 1)
    for source_base, present in old:
        if source_base >= end:
            files.fsync_dir(directory)
        for extension in present:
            _move(files, directory, source_base, extension, "", DELETED)
    files.fsync_dir(directory)
    for extension in extensions:
        _move(files, directory, base, extension, SWAP, "")
    files.fsync_dir(directory)
    for source_base, present in old:
        for extension in present:
            files.unlink(os.path.join(directory, names.segment_file(source_base, extension, DELETED)))
    _drop_inner_snapshots(files, directory, sources)
    return Segment.load(SegmentFiles(files, directory, base), next_offset=output.next_offset)


def _check(sources: Sequence[Segment], output: Segment) -> None:
    if not sources or output.base_offset != sources[0].base_offset:
        raise ValueError("an output has the base offset of its first source")
    if output.next_offset > sources[-1].next_offset:  # the highest: offsets ascend
        raise ValueError(
            f"an output ends at {output.next_offset}, above its sources: {sources[-1].next_offset}"
        )
    if any(source.active for source in sources):
        raise ValueError("the active segment is not rewritten")


def _extensions(files: Files, directory: str, source: Segment) -> list[str]:
    """Return the extensions of the files that a source has."""
    base = source.base_offset
    return [
        extension
        for extension in SEGMENT_EXTENSIONS
        if files.exists(os.path.join(directory, names.segment_file(base, extension)))
    ]


def _drop_inner_snapshots(files: Files, directory: str, sources: Sequence[Segment]) -> None:
    """Remove producer snapshots at bases that are gone, except the newest of all."""

    def path(offset: int) -> str:
        return os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))

    gone = [source.base_offset for source in sources[1:] if files.exists(path(source.base_offset))]
    # The segment above the sources has a newer snapshot, unless that was lost.
    if gone and not files.exists(path(sources[-1].next_offset)):
        newest = names.snapshot_offsets(files.listdir(directory))[-1:]
        gone = [offset for offset in gone if offset not in newest]
    for offset in gone:
        files.unlink(path(offset), missing_ok=True)


def _move(files: Files, directory: str, base: int, extension: str, old: str, new: str) -> None:
    source, target = (names.segment_file(base, extension, suffix) for suffix in (old, new))
    files.rename(os.path.join(directory, source), os.path.join(directory, target))


# ---------------------------------------------------------------- the rule for a listing


@dataclass(frozen=True, slots=True)
class Decision:
    """Meaning of a listing.

    Attributes:
        finish: (base, end) of each `.swap` log that is part of the log.
        undo: Bases of those that are not.
        logs: Base offset and suffix of the log files that are the log, ascending.
    """

    finish: tuple[tuple[int, int], ...]
    undo: frozenset[int]
    logs: tuple[tuple[int, str], ...]


def decide(files: Files, directory: str, listing: Sequence[str]) -> Decision:
    """Return the log that a directory listing stands for. FileVanishedError if it changes meanwhile."""
    parsed = [p for p in map(names.parse_segment_file, listing) if p is not None]
    logs = {
        suffix: sorted(p.base_offset for p in parsed if p.extension == LOG and p.suffix == suffix)
        for suffix in _ALL
    }
    cleaned = [p.base_offset for p in parsed if p.suffix == CLEANED]
    finish: list[tuple[int, int]] = []
    undo: set[int] = set()
    for base in logs[SWAP]:
        unfinished = any(c <= base for c in cleaned)
        try:
            output = Segment.load(SegmentFiles(files, directory, base, SWAP))
            if output.size == 0 and base in logs[""]:
                # We make no empty output; the range of an empty file is not known.
                undo.add(base)
                continue
            end = max(output.next_offset, base + 1)
        except DataError:
            if not _sources_are_there(files, directory, base, base + 1, logs):
                raise
            undo.add(base)
            continue
        if unfinished and _sources_are_there(files, directory, base, end, logs):
            undo.add(base)
        else:
            finish.append((base, end))
    readable = [(base, SWAP) for base, _ in finish]
    readable += [(b, "") for b in logs[""] if not any(start <= b < end for start, end in finish)]
    return Decision(tuple(finish), frozenset(undo), tuple(sorted(readable)))


_ALL = ("", CLEANED, SWAP, DELETED)


def _sources_are_there(files: Files, directory: str, base: int, end: int, logs: dict[str, list[int]]) -> bool:
    """Return whether all sources of the output at `base` exist under their own names."""
    if any(base <= deleted < end for deleted in logs[DELETED]):
        return False
    below = [b for b in logs[""] if b <= base]
    if not below:
        return False
    # The second output of a split has no source with its base; a source below covers it.
    return below[-1] == base or Segment.load(SegmentFiles(files, directory, below[-1])).next_offset > base


# ---------------------------------------------------------------- recover


class SwapRecovery(NamedTuple):
    """Result of `recover`: base offsets of swaps finished and undone, and names of files removed."""

    finished: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()


def recover(files: Files, directory: str) -> SwapRecovery:
    """Finish or undo an interrupted swap, also of Kafka. Afterwards only final names are left.

    It may be stopped anywhere: undone `.swap` files are removed before the `.cleaned` that make them undone;
    a stale `.cleaned` before a source of a `.swap` that is finished; sources before the `.swap` gets its
    final name.
    """
    listing = files.listdir(directory)
    parsed = [p for p in map(names.parse_segment_file, listing) if p is not None and p.suffix]
    if not parsed:
        return SwapRecovery()
    decision = decide(files, directory, listing)
    removed: list[str] = []

    def remove(unwanted: Sequence[SegmentFile]) -> None:
        for file in unwanted:
            files.unlink(os.path.join(directory, file.name), missing_ok=True)
            removed.append(file.name)
        if unwanted:
            files.fsync_dir(directory)

    swaps = [p for p in parsed if p.suffix == SWAP]
    finished = {base for base, _ in decision.finish}
    cleaned = [p for p in parsed if p.suffix == CLEANED]
    lowest = min((p.base_offset for p in cleaned), default=None)
    waste = [
        p
        for p in swaps
        if p.base_offset in decision.undo
        or (p.base_offset not in finished and lowest is not None and p.base_offset >= lowest)
    ]
    remove(sorted(waste, key=lambda p: p.extension != LOG))
    remove(cleaned)
    for start, end in decision.finish:
        remove([p for p in _finals(files, directory) if start <= p.base_offset < end])
    rest = [p for p in swaps if p not in waste]
    for file in sorted(rest, key=lambda p: (p.base_offset, _FINISHED.index(p.extension))):
        _finish_name(files, directory, file, removed)
    if rest:
        files.fsync_dir(directory)
    remove([p for p in parsed if p.suffix == DELETED])
    return SwapRecovery(tuple(sorted(finished)), tuple(sorted(decision.undo)), tuple(removed))


_FINISHED = (*SEGMENT_EXTENSIONS, SNAPSHOT)
"""The log first. No program makes a `.snapshot.swap`, and Kafka gives such a file its final name too."""


def _finals(files: Files, directory: str) -> list[SegmentFile]:
    parsed = [p for p in map(names.parse_segment_file, files.listdir(directory)) if p is not None]
    return [p for p in parsed if not p.suffix and p.extension in SEGMENT_EXTENSIONS]


def _finish_name(files: Files, directory: str, file: SegmentFile, removed: list[str]) -> None:
    """Rename `.swap` to the final name; remove an index if the final name is taken."""
    final = names.segment_file(file.base_offset, file.extension)
    if file.extension != LOG and files.exists(os.path.join(directory, final)):
        files.unlink(os.path.join(directory, file.name), missing_ok=True)
        removed.append(file.name)
        return
    try:
        files.rename(os.path.join(directory, file.name), os.path.join(directory, final))
    except FileVanishedError:
        removed.append(file.name)
