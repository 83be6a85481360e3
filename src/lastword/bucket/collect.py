"""Remove the objects of a log in a bucket that no version needs any more, and find those that are missing.

An object that the manifest does not name is *condemned*: with the time since when that is known. It is
removed when it has been condemned for `lastword.objects.retention.ms`, unless a pinned reader may need it.
All times are those of the store's clock; a clock of this machine decides nothing. The same rule removes what
writers left that died before their swap.

Order of the steps, and why it is safe:

1. Objects are listed.
2. The manifest is read, and swapped with the condemned list. If that list grows, its `collection` rises.
   Every commit that uploaded before has an older number; it sends its objects again, under new names. So a
   condemned object never gets a name, however long the collector or a writer sleeps, and the time since when
   it has none is right.
3. The objects are removed. A collector that dies here leaves them to the next one, which condemns them again.

Only names that this program makes are objects of the log. A foreign object is never condemned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice

from lastword.bucket.commit import BUNDLE_BYTES, Bucket, Loaded
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import (
    MANIFEST,
    OBJECTS,
    Entry,
    Pin,
    decode_condemned,
    encode_condemned,
    is_object,
    lost_object,
)
from lastword.errors import CorruptFileError, DataError, ObjectVanishedError, TruncatedObjectError
from lastword.objects.interface import ObjectFacts
from lastword.values import Value

REMOVED_PER_REQUEST = 1000
UNTIMED = -1
"""In a condemned list: the list before it, which loses its name when this one is swapped in.

The next list has the time. A list that only replaced another one is no reason for a new list, or every
collection would write one.
"""
SHOWN_FILES = 8
"""Files that the error for an object names."""
STORE_CLOCK_STEP_MS = 1000
"""Some stores give the time of an object in whole seconds."""


@dataclass(frozen=True, slots=True)
class Collection(Value):
    """The result of a collection, or its plan.

    Attributes:
        removed_objects: Objects that were removed, or that would be.
        removed_bytes: Their bytes.
        waiting_objects: Objects without a name that are kept for readers.
        waiting_bytes: Their bytes.
        pinned_objects: Objects of these that only a pinned reader keeps.
        uploading_objects: Other objects without a name, which may be of an upload that has not ended.
        named_objects: Objects that the log consists of.
        named_bytes: Their bytes.
        next_due_ms: When the first waiting object may go, or without any the first uploading one, by the
            store's clock; -1: there is none.
        dry_run: Nothing was removed.
    """

    removed_objects: int
    removed_bytes: int
    waiting_objects: int
    waiting_bytes: int
    pinned_objects: int
    uploading_objects: int
    named_objects: int
    named_bytes: int
    next_due_ms: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Decision:
    """What happens to each listed object."""

    removed: tuple[ObjectFacts, ...]
    waiting: dict[str, int]  # since when each has no name
    new: int  # objects that are condemned for the first time
    result: Collection


def collect(bucket: Bucket, *, retention_ms: int, dry_run: bool = False) -> Collection:
    """Condemn objects that have no name, and remove those that were condemned long enough ago.

    Args:
        bucket: The log.
        retention_ms: How long an object is kept after the last version that names it.
        dry_run: Change nothing. The clock of this machine then stands for the store's.

    Raises:
        BusyError: Commits of other processes always came first. Nothing was removed.
    """
    listed = [facts for facts in bucket.store.list(OBJECTS) if is_object(facts.key)]
    loaded = bucket.load()
    # Read after the version, so that no object of an older version is condemned since too early.
    now_ms = nameless_ms = bucket.clock.now_ms() if dry_run else bucket.store_now_ms()
    list_of = cache(partial(_condemned, bucket))
    condemned: str | None = None
    stored: dict[str, int] | None = None  # the list at `condemned`
    for attempt in range(bucket.attempts):
        if attempt:  # with few requests up to the swap, because another process may commit without a pause
            loaded = bucket.load()
            swapped_ms = bucket.store_now_ms() if loaded.is_own else loaded.modified_ms + STORE_CLOCK_STEP_MS
            nameless_ms = max(nameless_ms, swapped_ms)
        before = list_of(loaded.manifest.condemned)
        decision = _decide(loaded, before, listed, now_ms, nameless_ms, retention_ms, dry_run=dry_run)
        if dry_run or not (decision.removed or decision.new):
            return decision.result
        waiting = dict(decision.waiting)
        if loaded.manifest.condemned is not None:
            waiting[loaded.manifest.condemned] = UNTIMED
        if waiting != stored:
            condemned, stored = bucket.new_key() if waiting else None, waiting
            if condemned is not None:
                bucket.store.put(condemned, encode_condemned(waiting))
        manifest = replace(
            loaded.manifest,
            condemned=condemned,
            collection=loaded.manifest.collection + bool(decision.new),
            pins=_live(loaded.manifest.pins, now_ms),
            uploads=_live(loaded.manifest.uploads, now_ms),
        )
        if bucket.swap(loaded, bucket.following(manifest)) is None:
            break
    else:
        raise bucket.overtaken()
    for keys in _batches([facts.key for facts in decision.removed]):
        bucket.again(partial(bucket.store.delete, keys))
    return decision.result


def _decide(
    loaded: Loaded,
    before: Mapping[str, int],
    listed: Sequence[ObjectFacts],
    now_ms: int,
    nameless_ms: int,
    retention_ms: int,
    *,
    dry_run: bool,
) -> _Decision:
    named = loaded.snapshot.objects()
    pins = _live(loaded.manifest.pins, now_ms).values()
    uploads = _live(loaded.manifest.uploads, now_ms).values()
    uploading_since_ms = min((pin.since_ms - STORE_CLOCK_STEP_MS for pin in uploads), default=None)
    removed, waiting, held, pinned, uploading = [], {}, {}, 0, 0
    for facts in listed:
        if facts.key in named:
            continue
        if (
            uploading_since_ms is not None
            and facts.modified_ms >= uploading_since_ms
            and facts.key not in before
        ):
            uploading += 1
            continue
        since_ms = before.get(facts.key, UNTIMED)
        timed = since_ms != UNTIMED
        since_ms = since_ms if timed else nameless_ms
        due = timed and since_ms + retention_ms <= now_ms
        kept = any(pin.since_ms <= since_ms for pin in pins)
        if due and not kept:
            removed.append(facts)
        else:
            waiting[facts.key] = since_ms
            if before.get(facts.key) != UNTIMED:  # else it is a list, which no reader needs
                held[facts.key] = facts.size
            pinned += due
    sizes = {facts.key: facts.size for facts in listed}
    nameless = map(waiting.__getitem__, held) if held else (pin.until_ms for pin in uploads if uploading)
    first_ms = min(nameless, default=None)
    return _Decision(
        tuple(removed),
        waiting,
        sum(key not in before for key in waiting),
        Collection(
            removed_objects=len(removed),
            removed_bytes=sum(facts.size for facts in removed),
            waiting_objects=len(held),
            waiting_bytes=sum(held.values()),
            pinned_objects=pinned,
            uploading_objects=uploading,
            named_objects=len(named),
            named_bytes=sum(sizes.get(key, 0) for key in named),
            next_due_ms=-1 if first_ms is None else first_ms + retention_ms,
            dry_run=dry_run,
        ),
    )


def _condemned(bucket: Bucket, key: str | None) -> dict[str, int]:
    """Return a condemned list; empty if it is gone or damaged, so that it begins again."""
    if key is None:
        return {}
    try:
        stored = bucket.again(partial(bucket.store.get, key))
        assert stored is not None
        return decode_condemned(stored.data, f"{bucket.url}/{key}")
    except (ObjectVanishedError, CorruptFileError):
        return {}


def _live(pins: Mapping[str, Pin], now_ms: int) -> dict[str, Pin]:
    return {name: pin for name, pin in pins.items() if pin.until_ms > now_ms}


def drop_removed_bytes(bucket: Bucket) -> None:
    """Let no object of the newest version hold bytes that are not in the version.

    Small files of a commit share an object, which stays as long as one of them does. The files of each object
    with other bytes move to new objects, and the pages of the manifest become one, without entries that are
    replaced. A collection removes the old objects. If this is interrupted, the next call does what is left.
    """
    sizes = {facts.key: facts.size for facts in bucket.store.list(OBJECTS)}
    loaded = bucket.load()
    pieces: dict[str, set[tuple[int, int]]] = {}
    for _, entry in loaded.snapshot.files():
        for key, position, size in _pieces(entry):
            pieces.setdefault(key, set()).add((position, size))
    shared, taken = set(), 0
    for key, ranges in pieces.items():
        named_bytes = sum(size for _, size in ranges)
        if sizes.get(key, 0) > named_bytes:
            shared.add(key)
            taken += named_bytes
        if taken >= BUNDLE_BYTES:
            bucket.transaction(partial(_move, bucket, frozenset(shared)))
            shared, taken = set(), 0
    if shared:
        bucket.transaction(partial(_move, bucket, frozenset(shared)))
    bucket.merge_pages()


def _move(bucket: Bucket, objects: frozenset[str], files: BucketFiles) -> None:
    """Replace each file in some objects by an equal one, which the commit stores in a new object."""
    for path, entry in list(files.snapshot.files()):
        if not objects.isdisjoint(entry.objects()):
            data = bucket.reads.whole(entry)
            files.adopt({path: entry._replace(object=None, position=0, data=data, patch=None)})


def _pieces(entry: Entry) -> Iterator[tuple[str, int, int]]:
    """Yield object, position and size of the bytes of a file."""
    if entry.object is not None:
        yield entry.object, entry.position, entry.size
    if entry.patch is not None:
        yield entry.patch


def missing_objects(bucket: Bucket) -> list[DataError]:
    """Compare the objects that the newest version names with one listing of the store.

    The condemned list is left out: no file is in it, and without it a collection begins again.

    Returns:
        An error for each object that is missing or has the wrong size. An object that several files shared
        may be longer than the files that still name it, up to the size of such an object; bytes behind them
        are never read.
    """
    loaded = bucket.load()
    # An object of this version is in a listing that begins now, unless a newer version does not name it.
    sizes = {facts.key: facts.size for facts in bucket.store.list(OBJECTS)}
    needed: dict[str, list[tuple[int, str]]] = {}  # by object: the end of the bytes of each file in it
    whole = set()  # objects of one file
    for path, entry in loaded.snapshot.files():
        if entry.object is not None:
            needed.setdefault(entry.object, []).append((entry.position + entry.size, path))
            if entry.position == 0 and entry.size >= BUNDLE_BYTES:
                whole.add(entry.object)
        if entry.patch is not None:
            end = entry.patch.position + entry.patch.size
            needed.setdefault(entry.patch.object, []).append((end, path))
    for page in loaded.manifest.pages:
        needed[page.object] = [(page.size, MANIFEST)]
    errors: dict[str, DataError] = {}
    for key, ends in sorted(needed.items()):
        url, size = f"{bucket.url}/{key}", sizes.get(key)
        paths = [path for end, path in sorted(ends) if size is None or end > size]
        if size is None:
            errors[key] = lost_object(url, _several(paths))
        elif paths:
            errors[key] = TruncatedObjectError.of(url, max(ends)[0], size, _several(paths))
        elif size > (max(ends)[0] if key in whole else max(max(ends)[0], 2 * BUNDLE_BYTES)):
            errors[key] = CorruptFileError(
                f"the object has {size} bytes, and its files end at byte {max(ends)[0]}; it has "
                f"{_several([path for _, path in sorted(ends)])}",
                code="longer-object",
                remedy="another program changed it: restore the object from a copy; `lastword verify` lists "
                "all damage",
                file=url,
                position=max(ends)[0],
            )
    if errors:  # a newer version may not name the objects
        named = bucket.load().snapshot.objects()
        errors = {key: error for key, error in errors.items() if key in named}
    return list(errors.values())


def _several(paths: Sequence[str]) -> str:
    """Return the names of the first files, and the number of the others."""
    first, others = paths[:SHOWN_FILES], len(paths) - SHOWN_FILES
    return ", ".join(first) + (f" and {others} more" if others > 0 else "")


def _batches(keys: Sequence[str]) -> Iterator[list[str]]:
    remaining = iter(keys)
    while batch := list(islice(remaining, REMOVED_PER_REQUEST)):
        yield batch
