"""`merged`: whether the changes of two commits hold together.

Both began with the same version; `ours` did not come in. The changes of one partition are of two kinds. An
*append* adds segments at the log end, with what belongs to them: indexes, producer snapshots, leader epochs,
names of batches. Everything else is a *rewrite*: a cleaning, a retention, a trim, a lease. An append and a
rewrite of one partition hold together, because a rewrite decides about records below the log end that it
found, and an append changes none of them. Two appends do not: both would begin at the same offset. Two
rewrites do not: a lease that was taken meanwhile forbids to remove tombstones, for example. An append and a
change of settings do not: an append begins with the newest version that this process knows, and the settings
may limit its records.

Each topic has a file of its own for its settings, so the creations and settings of different topics hold
together. A change of the settings of a topic and its removal do not: they would stay for a new topic.

The files of a divided cleaning change nothing of the log: they hold together with every other change.

The checkpoints of the root have a line for each partition, and are merged line by line. A garbage index or a
key index that both wrote is removed: it is derived, and is made again. One that only one of them wrote is in
the version: a reader compares it with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lastword.bucket.manifest import Changes, Entry, ManifestVersion
from lastword.config import is_topic_file, topic_file
from lastword.errors import CorruptFileError
from lastword.partition.checkpoint_file import format_lines, parse_lines
from lastword.segment import names

CHECKPOINTS = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.FIRST_DIRTY)
_OF_REWRITES = (names.LOG_STARTS, names.FIRST_DIRTY)
_DERIVED = (names.ACCOUNTS, names.SURVIVORSHIP, names.SUMMARY, names.KEYS)
_OF_APPENDS = (names.PRODUCERS, names.SYNCED)
_JOBS = (f"{names.PRIVATE}/{names.JOB_PREFIX}", f"{names.PRIVATE}/{names.PLAN_PREFIX}")
"""The files of a divided cleaning, which are no part of the log."""


class ChangedMeanwhile(Exception):
    """Another commit changed the same thing."""


Read = Callable[[Entry], bytes]
"""Returns the bytes of a file."""


def merged(
    base: ManifestVersion, ours: Changes, theirs: ManifestVersion, read: Read
) -> dict[str, Entry | None]:
    """Return our changes as they apply to the version of the others.

    Args:
        base: The version with which both began.
        ours: Our changes to it.
        theirs: The version that has the changes of the others.
        read: Reads a checkpoint.

    Raises:
        ChangedMeanwhile: They do not hold together.
    """
    changed = theirs.changed_since(base)
    result = dict(ours)
    for path in sorted(changed & ours.keys()):
        result[path] = _both(path, base, ours[path], theirs, read)
    rewritten = _rewritten(base, ours, read)
    for directory in {path.partition("/")[0] for path in ours if "/" in path} - rewritten:
        topic = names.topic_partition(directory)[0]
        if base.children(directory) and changed & {names.SETTINGS, topic_file("", topic)}:
            raise ChangedMeanwhile(f"the settings of {topic} changed")
    if rewritten:
        rewritten &= _rewritten(base, {path: theirs.entry(path) for path in sorted(changed)}, read)
    if rewritten:
        raise ChangedMeanwhile(f"both rewrote {min(rewritten)}")
    for directory in {path.partition("/")[0] for path in ours if "/" in path}:
        if base.children(directory) and not theirs.children(directory):
            raise ChangedMeanwhile(f"{directory} was removed")
        if _removes(base, ours, directory) and any(path.startswith(f"{directory}/") for path in changed):
            raise ChangedMeanwhile(f"{directory} has more files now")
    return result


def _removes(base: ManifestVersion, ours: Changes, directory: str) -> bool:
    """Return whether our changes remove a partition: all that others add to it would stay."""
    files = [name for name, entry in base.children(directory).items() if entry is not None]
    return all(f"{directory}/{name}" in ours and ours[f"{directory}/{name}"] is None for name in files)


def _both(
    path: str, base: ManifestVersion, entry: Entry | None, theirs: ManifestVersion, read: Read
) -> Entry | None:
    """Return the file at a path that both changed."""
    name = path.rpartition("/")[2]
    if path in CHECKPOINTS:
        return _merged_lines(path, base.entry(path), entry, theirs.entry(path), read)
    if _is_derived(name):
        return None
    raise ChangedMeanwhile(f"both changed {path}")


def _rewritten(base: ManifestVersion, changes: Changes, read: Read) -> set[str]:
    """Return the partitions that the changes rewrite, and "" if they change a file of the root.

    A change of the settings of a topic counts as the name of their file. So does the removal of a partition
    of the topic.

    A changed log start or first dirty offset counts: a topic that is removed meanwhile must not leave it.
    """
    rewritten = set()
    ends: dict[str, str] = {}
    for path, entry in changes.items():
        directory, _, name = path.partition("/")
        if name == names.PARTITION_METADATA and entry is None:
            rewritten.add(topic_file("", names.topic_partition(directory)[0]))
        if not name:
            if path not in CHECKPOINTS:
                rewritten.add(path if is_topic_file(path) else "")
            elif path in _OF_REWRITES:
                before, after = (set(_lines(path, file, read).items()) for file in (base.entry(path), entry))
                rewritten.update("-".join(key) for key, _ in before ^ after)
            continue
        if name.startswith(_JOBS):
            continue
        if directory not in ends:
            ends[directory] = max((n for n in base.children(directory) if n.endswith(names.LOG)), default="")
        if not _of_append(name, entry, ends[directory]):
            rewritten.add(directory)
    return rewritten


def _of_append(name: str, entry: Entry | None, last_log: str) -> bool:
    """Return whether a changed file of a partition belongs to an append.

    `last_log` is the log of the segment that was active: empty, or a later append goes on in it.
    """
    if name.startswith(f"{names.PRIVATE}/"):
        name = name.rpartition("/")[2]
        return name in _OF_APPENDS or _is_derived(name)
    if name == names.LEADER_EPOCHS or name.endswith(names.SNAPSHOT):
        return True
    base, dot, _ = name.partition(".")
    return bool(dot) and entry is not None and base >= last_log.partition(".")[0]


def _is_derived(name: str) -> bool:
    """Return whether a private file is made from the log: a garbage index, or a key index."""
    return name in _DERIVED or name.startswith(names.KEY_RUN)


def _merged_lines(
    path: str, base: Entry | None, ours: Entry | None, theirs: Entry | None, read: Read
) -> Entry | None:
    """Return a checkpoint with the lines of both. ChangedMeanwhile: both changed the same line."""
    if ours is None or theirs is None:
        raise ChangedMeanwhile(f"{path} was removed")
    before, mine, other = (_lines(path, entry, read) for entry in (base, ours, theirs))
    lines = dict(other)
    for key in before.keys() | mine.keys():
        if mine.get(key) == before.get(key):
            continue
        if other.get(key) != before.get(key) and other.get(key) != mine.get(key):
            raise ChangedMeanwhile(f"both changed {' '.join(key)} in {path}")
        if key in mine:
            lines[key] = mine[key]
        else:
            lines.pop(key, None)
    data = format_lines([" ".join((*key, offset)) for key, offset in sorted(lines.items())])
    return ours._replace(size=len(data), data=data, object=None, position=0)


def _lines(path: str, entry: Entry | None, read: Read) -> dict[tuple[str, ...], str]:
    if entry is None:
        return {}
    try:
        rows: Iterable[list[str]] = parse_lines(read(entry).decode(), path, 3)
    except (CorruptFileError, UnicodeDecodeError):
        raise ChangedMeanwhile(f"{path} is damaged") from None
    return {(topic, partition): offset for topic, partition, offset in rows}
