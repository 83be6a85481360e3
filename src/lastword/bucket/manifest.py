"""`Manifest`: the files of a log in a bucket, and the objects that hold their bytes.

The manifest is the only object of a log that is ever overwritten, and only by a conditional swap. It maps the
path of each file, relative to the log's root, to an `Entry`. So one swap changes any number of partitions and
topics together, and each version of the manifest is a log directory that was closed cleanly.

A log of 100,000 segments has a long map. The map is therefore a small LSM tree: `changes` holds the newest
entries inside the manifest, and `pages` names immutable objects with the older ones. A path is looked up in
`changes`, then in the newest page. When `changes` is long, a commit moves it to a new page, together with the
pages that are not much larger. There are at most `MAX_PAGES`, so a log is opened with at most 1 + `MAX_PAGES`
requests, and the bytes of a swap do not depend on the number of segments.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lastword.errors import CorruptFileError
from lastword.files.framed import Framed
from lastword.segment import names

MANIFEST = "manifest"
"""Key of the manifest."""
OBJECTS = "objects/"
"""Prefix of the keys of all other objects. Each is written once, under a random name (`is_object`)."""
HISTORY = 64
"""Commits that a manifest names. A writer that lost the answer of its swap looks for its own there."""
INLINE_BYTES = 1024
"""A file of at most this size is stored in the map itself."""
CHANGES_BYTES = 128 << 10
"""Size of `changes`, encoded, from which a commit moves them to a page."""
MAX_PAGES = 3
PAGE_RATIO = 4
"""A new page takes in each older page that is at most this number of times larger."""

_FORM = Framed(
    "bucket-manifest",
    1,
    code="damaged-manifest",
    remedy="restore an older version of this object, if the bucket keeps versions",
)
_OBJECT = re.compile(OBJECTS + "[0-9a-f]{32}")
_PAGE_FORM = Framed("bucket-page", 1, code="damaged-manifest", remedy=_FORM.remedy)


def is_object(key: str) -> bool:
    """Return whether a key has the form of those of this program's objects: another one is foreign."""
    return _OBJECT.fullmatch(key) is not None


def lost_object(url: str, needed_by: str) -> CorruptFileError:
    """Return the error for an object that is gone although the newest version needs it."""
    return CorruptFileError(
        f"the object is missing; needed by {needed_by}",
        code="lost-object",
        remedy="restore the object from a copy, or undelete it if the bucket keeps versions; "
        "`lastword verify` lists all damage",
        file=url,
    )


def lost_manifest(url: str) -> CorruptFileError:
    """Return the error for the log at `url`, whose objects are there without the manifest."""
    return CorruptFileError(
        "the manifest is missing, and the log has objects",
        code="lost-object",
        remedy="undelete the manifest if the bucket keeps versions; to give the log up, remove its objects",
        file=f"{url}/{MANIFEST}",
    )


class PatchRef(NamedTuple):
    """Where a patch is: its object, its position there, and its bytes."""

    object: str
    position: int
    size: int


class Entry(NamedTuple):
    """One file of a log.

    Attributes:
        number: Identity of the content, as an inode: random, and kept when the file is renamed.
        size: Bytes.
        mtime_ms: Time of the last change.
        object: Key of the object that holds the bytes; None: `data` holds them.
        position: Position of the first byte in the object.
        data: The bytes of a small file.
        patch: Where bytes are that replace some of the object's (`Patch`); None: no byte is replaced.
    """

    number: int
    size: int
    mtime_ms: int
    object: str | None = None
    position: int = 0
    data: bytes = b""
    patch: PatchRef | None = None

    def to_json(self) -> list[Any]:
        """Return the entry as a list of JSON values."""
        if self.object is None:
            text = base64.b64encode(self.data).decode()
            return [self.number, self.size, self.mtime_ms, text]
        fields = [self.number, self.size, self.mtime_ms, self.object, self.position]
        return fields if self.patch is None else [*fields, list(self.patch)]

    @classmethod
    def of_json(cls, fields: list[Any]) -> Entry:
        """Return the entry of a list of JSON values. ValueError, TypeError: they are no entry."""
        if len(fields) == 4:
            number, size, mtime_ms, text = fields
            data = base64.b64decode(text, validate=True)
            if len(data) != size:
                raise ValueError(f"a file of {size} bytes has {len(data)}")
            return cls(int(number), int(size), int(mtime_ms), data=data)
        number, size, mtime_ms, key, position, *patched = fields
        patch = None
        if patched:
            [(patch_key, patch_position, patch_size)] = patched
            patch = PatchRef(_text(patch_key), int(patch_position), int(patch_size))
        if size < 0 or position < 0:
            raise ValueError(f"{size} bytes from position {position}")
        return cls(int(number), int(size), int(mtime_ms), _text(key), int(position), patch=patch)

    def objects(self) -> tuple[str, ...]:
        """Return the objects that hold the bytes of the file."""
        if self.object is None:
            return ()
        return (self.object,) if self.patch is None else (self.object, self.patch.object)


Changes = Mapping[str, Entry | None]
"""Entries by path; None: the file was removed."""


class PageRef(NamedTuple):
    """A page: its object, the number of its entries, and its size in bytes."""

    object: str
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A process that needs objects for longer than they are kept without a name.

    Attributes:
        since_ms: When it was set, by the store's clock, or earlier.
        until_ms: When it lapses, by the store's clock.
    """

    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a log in a bucket.

    Attributes:
        nonce: Random name of the commit that made this version. Two versions never have the same bytes, so a
            store whose ETags are digests of content cannot take one for another.
        history: Nonces of the last commits, oldest first, this one included.
        collection: Number of collections so far that removed objects (`lastword.bucket.collect`). An object
            that was uploaded under an older number may be gone if no manifest names it yet.
        pages: Older entries, oldest page first.
        changes: Newest entries.
        condemned: Object with the time since when each unnamed object has no name; None: there are none.
        pins: Readers by name.
        uploads: Writers by name whose processes upload objects for one commit, a Spark job for example:
            objects that were uploaded since then are not condemned.
    """

    nonce: str
    history: tuple[str, ...] = ()
    collection: int = 0
    pages: tuple[PageRef, ...] = ()
    changes: Changes = field(default_factory=dict)
    condemned: str | None = None
    pins: Mapping[str, Pin] = field(default_factory=dict)
    uploads: Mapping[str, Pin] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes of the manifest object."""
        return _FORM.encode(
            {
                "nonce": self.nonce,
                "history": list(self.history),
                "collection": self.collection,
                "pages": [list(page) for page in self.pages],
                "changes": _to_json(self.changes),
                "condemned": self.condemned,
                "pins": {name: [pin.since_ms, pin.until_ms] for name, pin in self.pins.items()},
                "uploads": {name: [pin.since_ms, pin.until_ms] for name, pin in self.uploads.items()},
            }
        )

    @classmethod
    def decode(cls, data: bytes, url: str) -> Manifest:
        """Return the manifest of an object.

        Raises:
            CorruptFileError: The object is damaged, or of a newer version.
        """
        fields = _FORM.decode(data, url)
        with _FORM.reading(url):
            return cls(
                nonce=_text(fields["nonce"]),
                history=tuple(map(_text, fields["history"])),
                collection=int(fields["collection"]),
                pages=tuple(
                    PageRef(_text(key), int(count), int(size)) for key, count, size in fields["pages"]
                ),
                changes=_of_json(fields["changes"]),
                condemned=None if fields["condemned"] is None else _text(fields["condemned"]),
                pins=_pins(fields["pins"]),
                uploads=_pins(fields["uploads"]),
            )
        raise AssertionError


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _pins(fields: Mapping[str, Any]) -> dict[str, Pin]:
    return {name: Pin(int(since_ms), int(until_ms)) for name, (since_ms, until_ms) in fields.items()}


def encode_page(changes: Changes) -> bytes:
    """Return the bytes of a page: compressed, because paths repeat each other."""
    return zlib.compress(_PAGE_FORM.encode({"changes": _to_json(changes)}), 1)


def decode_page(data: bytes, url: str, page: PageRef) -> Changes:
    """Return the entries of a page. CorruptFileError: the object is damaged, or of a newer version."""
    if len(data) != page.size:
        raise _PAGE_FORM.damaged(url, f"it has {len(data)} bytes, and {page.size} were written")
    try:
        plain = zlib.decompress(data)
    except zlib.error:
        raise _PAGE_FORM.damaged(url, "it cannot be decompressed") from None
    fields = _PAGE_FORM.decode(plain, url)
    with _PAGE_FORM.reading(url):
        changes = _of_json(fields["changes"])
        if len(changes) != page.entries:
            raise ValueError(f"{len(changes)} entries, and {page.entries} were written")
        return changes
    raise AssertionError


def encode_condemned(since_ms: Mapping[str, int]) -> bytes:
    """Return the bytes of the list of condemned objects."""
    return zlib.compress(json.dumps(since_ms).encode(), 1)


def decode_condemned(data: bytes, url: str) -> dict[str, int]:
    """Return the list of condemned objects. CorruptFileError: the object is damaged."""
    try:
        return {str(key): int(since) for key, since in json.loads(zlib.decompress(data)).items()}
    except (zlib.error, ValueError, AttributeError, TypeError):
        raise CorruptFileError(
            "damaged list of condemned objects", code="damaged-manifest", remedy=_FORM.remedy, file=url
        ) from None


def _to_json(changes: Changes) -> dict[str, Any]:
    return {path: None if entry is None else entry.to_json() for path, entry in changes.items()}


def _of_json(fields: Mapping[str, Any]) -> dict[str, Entry | None]:
    return {path: None if entry is None else Entry.of_json(entry) for path, entry in fields.items()}


# ---------------------------------------------------------------- bytes that replace others


class Patch:
    """Bytes that replace those of an object at some positions of a file.

    So the batches of a large uploaded object get their offsets, which are known only at the commit, and the
    object is not uploaded again.
    """

    _HEAD = struct.Struct("<QH")

    def __init__(self, parts: Mapping[int, bytes]) -> None:
        self._parts = dict(sorted(parts.items()))
        self._positions = list(self._parts)
        self._longest = max((len(part) for part in self._parts.values()), default=0)

    def encode(self) -> bytes:
        """Return the bytes that are stored."""
        packed = (self._HEAD.pack(at, len(part)) + part for at, part in self._parts.items())
        return zlib.compress(b"".join(packed), 1)

    @classmethod
    def decode(cls, data: bytes, url: str) -> Patch:
        """Return a stored patch. CorruptFileError: it is damaged."""
        parts: dict[int, bytes] = {}
        try:
            plain, at = zlib.decompress(data), 0
            while at < len(plain):
                position, size = cls._HEAD.unpack_from(plain, at)
                at += cls._HEAD.size + size
                parts[position] = plain[at - size : at]
        except (zlib.error, struct.error):
            raise _PAGE_FORM.damaged(url, "a patch cannot be decoded") from None
        return cls(parts)

    @property
    def parts(self) -> Mapping[int, bytes]:
        """The bytes by position."""
        return self._parts

    def apply(self, buffer: bytearray, start: int) -> None:
        """Replace bytes in `buffer`, which holds the file from `start` on."""
        end = start + len(buffer)
        for index in range(bisect_left(self._positions, start - self._longest), len(self._positions)):
            at = self._positions[index]
            if at >= end:
                return
            part = self._parts[at]
            first, last = max(at, start), min(at + len(part), end)
            if first < last:
                buffer[first - start : last - start] = part[first - at : last - at]


# ---------------------------------------------------------------- one version, with its pages


class Snapshot:
    """A manifest with its pages: every file of a log, as of one version. Immutable.

    Args:
        manifest: The manifest.
        pages: The entries of its pages, oldest first.
    """

    def __init__(self, manifest: Manifest, pages: tuple[Layer, ...] = ()) -> None:
        self.manifest = manifest
        self.layers = (Layer(manifest.changes), *reversed(pages))  # newest first
        self._children: dict[str, dict[str, Entry | None]] = {}
        self._logs: dict[str, list[str]] = {}  # names of the segments by directory, in order

    def entry(self, path: str) -> Entry | None:
        """Return the file at a path; None if there is none."""
        for layer in self.layers:
            if path in layer.entries:
                return layer.entries[path]
        return None

    def children(self, directory: str) -> Mapping[str, Entry | None]:
        """Return the names in a directory with their files; None for a directory. "" is the root."""
        children = self._children.get(directory)
        if children is None:
            merged: dict[str, Entry | None] = {}
            for layer in reversed(self.layers):
                for name, entry in layer.files.get(directory, {}).items():
                    if entry is None:
                        merged.pop(name, None)
                    else:
                        merged[name] = entry
            for layer in self.layers:
                for name in layer.directories.get(directory, ()):
                    if name not in merged and self.children(f"{directory}/{name}" if directory else name):
                        merged[name] = None
            children = self._children[directory] = merged
        return children

    def next_log(self, directory: str, name: str) -> tuple[str, Entry] | None:
        """Return name and file of the segment after the one of this name; None: there is none."""
        children = self.children(directory)
        logs = self._logs.get(directory)
        if logs is None:
            logs = self._logs[directory] = sorted(child for child in children if child.endswith(names.LOG))
        at = bisect_right(logs, name)
        entry = children[logs[at]] if at < len(logs) else None
        return None if entry is None else (logs[at], entry)

    def files(self) -> Iterator[tuple[str, Entry]]:
        """Iterate over all files with their paths."""
        visited: set[str] = set()
        for layer in self.layers:
            for path, entry in layer.entries.items():
                if path not in visited:
                    visited.add(path)
                    if entry is not None:
                        yield path, entry

    def changed_since(self, base: Snapshot) -> set[str]:
        """Return the paths whose files differ from those of another version."""
        if base.manifest.pages == self.manifest.pages:
            paths = {*base.manifest.changes, *self.manifest.changes}
        else:
            paths = {path for layer in (*base.layers, *self.layers) for path in layer.entries}
        return {path for path in paths if base.entry(path) != self.entry(path)}

    def objects(self) -> set[str]:
        """Return every object that the version names: those of files, pages and the condemned list."""
        named = {key for _, entry in self.files() for key in entry.objects()}
        named.update(page.object for page in self.manifest.pages)
        if self.manifest.condemned is not None:
            named.add(self.manifest.condemned)
        return named


class Layer:
    """Entries of a page, or of the manifest itself, also by directory."""

    def __init__(self, entries: Changes) -> None:
        self.entries = entries
        self.files: dict[str, dict[str, Entry | None]] = {}
        self.directories: dict[str, set[str]] = {}
        for path, entry in entries.items():
            directory, _, name = path.rpartition("/")
            siblings = self.files.get(directory)
            if siblings is None:
                siblings = self.files[directory] = {}
                below = directory
                while below:
                    above, _, last = below.rpartition("/")
                    self.directories.setdefault(above, set()).add(last)
                    below = above
            siblings[name] = entry
