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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from lastword.errors import LOST_OBJECT, CorruptFileError
from lastword.files.framed import MAGIC, MAX_BYTES, Framed
from lastword.segment import names

MANIFEST = "manifest"
"""Key of the manifest."""
OBJECTS = "objects/"
"""Prefix of the keys of all other objects. Each is written once, under a random name (`is_object`)."""
HISTORY = 64
"""Commits that a manifest names. A writer that lost the answer of its swap looks for its own there."""
INLINE_BYTES = 1024
"""A file of at most this size is stored in the map itself."""
SUMMARY_BYTES = 8 << 10
"""A summary of a garbage index of at most this size is in the map, too: a plan reads all of them. So is the
manifest of a key index: a lookup reads it first."""
CHECKPOINT_BYTES = 16 << 10
"""So is a checkpoint of the root of at most this size, a line for each of about 700 partitions: else each
append would write an object for it, and the next one read it."""
CHANGES_BYTES = 5 << 10
"""Size of `changes` before compression, without checkpoints, from which a commit moves them to a page: about
12 commits of a few records. Each commit sends all changes."""
LONG_CHANGES_BYTES = 128 << 10
"""The same for a commit that was refused, so that it uploads nothing between its read and its swap: a process
that commits without a pause would come first each time."""
MAX_PAGES = 4
"""To open a log and plan takes 6 requests at most: the manifest, its pages, and a check for a newer one."""
PAGE_POWER = 1 / 5
"""A new page takes in each older page that is at most R times larger. R is this power of the times that the
oldest page is larger than the changes: the pages of a small log are rewritten less often with a low R, and
those of a large one, of which there are at most `MAX_PAGES`, with a high R."""

MOST_NODES = 8
"""Servers that a manifest names. The one that joined longest ago is left out, unless it is active."""

_FORM = Framed(
    "bucket-manifest",
    2,
    code="damaged-manifest",
    remedy="restore an older version of this object, if the bucket keeps versions",
)
_LEVEL = 1
"""Level of zlib. The next levels save some percent of the bytes, and double the time."""
_OBJECT = re.compile(OBJECTS + "[0-9a-f]{32}")
_PAGE_FORM = Framed("bucket-page", 1, code="damaged-manifest", remedy=_FORM.remedy)


def is_object(key: str) -> bool:
    """Return whether a key has the form of those of this program's objects: another one is foreign."""
    return _OBJECT.fullmatch(key) is not None


def lost_object(url: str, needed_by: str) -> CorruptFileError:
    """Return the error for an object that is gone although the newest version needs it."""
    return CorruptFileError(
        f"the object is missing; needed by {needed_by}",
        code=LOST_OBJECT,
        remedy="restore the object from a copy, or undelete it if the bucket keeps versions; "
        "`lastword verify` lists all damage",
        file=url,
    )


def lost_manifest(url: str) -> CorruptFileError:
    """Return the error for the log at `url`, whose objects are there without the manifest."""
    return CorruptFileError(
        "the manifest is missing, and the log has objects",
        code=LOST_OBJECT,
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


class ServerNode(NamedTuple):
    """A server of the log.

    Attributes:
        id: The id of its node, as clients see it. No other server of the log has it.
        address: Host and port that clients connect to.
        name: The name of its machine, for people.
    """

    id: int
    address: str
    name: str


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that connect Kafka's clients with the log: the active one, and its standbys.

    Attributes:
        epoch: Number of takeovers so far. Every commit of the active server is conditional on it.
        session: Random name of the active server's session; "": no server is active.
        renewals: Commits of the active server in this epoch.
        active: Id of the active server; 0 before the first one.
        timeout_ms: How long a standby waits for a renewal before it takes over.
        nodes: The servers in the order in which they joined.
    """

    epoch: int = 0
    session: str = ""
    renewals: int = 0
    active: int = 0
    timeout_ms: int = 0
    nodes: tuple[ServerNode, ...] = ()

    _NUMBERS: ClassVar = ("epoch", "renewals", "active", "timeout_ms")

    @property
    def node(self) -> ServerNode | None:
        """The active server; None: no server is active."""
        return next((node for node in self.nodes if self.session and node.id == self.active), None)

    def joined(self, address: str, name: str) -> Servers:
        """Return the servers with one of this address. It keeps its id as long as it is among them."""
        known = next((node for node in self.nodes if node.address == address), None)
        number = known.id if known else max(self.active, *(node.id for node in self.nodes), 0) + 1
        others = [node for node in self.nodes if node is not known]
        if len(others) == MOST_NODES:
            others.remove(next(node for node in others if node is not self.node))
        return replace(self, nodes=(*others, ServerNode(number, address, name)))

    def without(self, address: str, session: str) -> Servers:
        """Return the servers without the one of an address and session. If it was active, none is.

        The active server stays if it has this address and another session.
        """
        is_active = self.session == session
        if not is_active and self.node is not None and self.node.address == address:
            return self
        nodes = tuple(node for node in self.nodes if node.address != address)
        return replace(self, session="" if is_active else self.session, nodes=nodes)

    def taken_over(self, address: str, session: str, timeout_ms: int) -> Servers:
        """Return the servers after a takeover by the one of an address."""
        [active] = [node.id for node in self.nodes if node.address == address]
        return Servers(self.epoch + 1, session, 0, active, timeout_ms, self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Return the servers as JSON values."""
        numbers = {name: getattr(self, name) for name in self._NUMBERS}
        return {"session": self.session, **numbers, "nodes": [list(node) for node in self.nodes]}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Servers:
        """Return the servers of JSON values. ValueError, TypeError, KeyError: they are none."""
        nodes = tuple(ServerNode(int(n), _text(address), _text(name)) for n, address, name in fields["nodes"])
        numbers = {name: int(fields[name]) for name in cls._NUMBERS}
        return cls(session=_text(fields["session"]), nodes=nodes, **numbers)


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
        servers: The servers of the log.
    """

    nonce: str
    history: tuple[str, ...] = ()
    collection: int = 0
    pages: tuple[PageRef, ...] = ()
    changes: Changes = field(default_factory=dict)
    condemned: str | None = None
    pins: Mapping[str, Pin] = field(default_factory=dict)
    uploads: Mapping[str, Pin] = field(default_factory=dict)
    servers: Servers = Servers()

    def encode(self) -> bytes:
        """Return the bytes of the manifest object, compressed."""
        plain = _FORM.encode(
            {
                "nonce": self.nonce,
                "history": list(self.history),
                "collection": self.collection,
                "pages": [list(page) for page in self.pages],
                "condemned": self.condemned,
                "pins": {name: [pin.since_ms, pin.until_ms] for name, pin in self.pins.items()},
                "uploads": {name: [pin.since_ms, pin.until_ms] for name, pin in self.uploads.items()},
                "servers": self.servers.to_json() if self.servers.epoch or self.servers.nodes else None,
            },
            {"changes": f"{{{', '.join([_line(path, entry) for path, entry in self.changes.items()])}}}"},
        )
        return zlib.compress(plain, _LEVEL)

    @classmethod
    def decode(cls, data: bytes, url: str) -> Manifest:
        """Return the manifest of an object.

        Raises:
            CorruptFileError: The object is damaged, or of a newer version.
        """
        fields = _FORM.decode(data if data.startswith(MAGIC) else _decompressed(_FORM, data, url), url)
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
                servers=Servers() if fields.get("servers") is None else Servers.of_json(fields["servers"]),
            )
        raise AssertionError


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _pins(fields: Mapping[str, Any]) -> dict[str, Pin]:
    return {name: Pin(int(since_ms), int(until_ms)) for name, (since_ms, until_ms) in fields.items()}


def encode_page(layers: Sequence[Layer], *, oldest: bool) -> tuple[int, bytes]:
    """Return the number of entries and the bytes of a page: the entries of each directory, compressed.

    A directory of which one layer alone has entries is not decoded.

    Args:
        layers: The layers that the page replaces, newest first.
        oldest: No page is older, so the page has no removed files. The last layer has none either, if it is
            not the only one.
    """
    texts: dict[str, tuple[int, str]] = {}
    for directory in dict.fromkeys(directory for layer in layers for directory in layer.with_entries()):
        having = [layer for layer in layers if layer.has_entries(directory)]
        only = having[0] if len(having) == 1 else None
        text = only.text(directory) if only is not None and (not oldest or only is layers[-1]) else None
        if text is None:
            entries: dict[str, Entry | None] = {}
            for layer in reversed(having):
                entries.update(layer.files(directory))
            if oldest:
                entries = {name: entry for name, entry in entries.items() if entry is not None}
            text = len(entries), json.dumps(_to_json(entries))
        if text[0]:
            texts[directory] = text
    count = sum(number for number, _ in texts.values())
    return count, zlib.compress(_PAGE_FORM.encode({"directories": texts}), _LEVEL)


def decode_page(data: bytes, url: str, page: PageRef) -> Layer:
    """Return the entries of a page. CorruptFileError: the object is damaged, or of a newer version."""
    if len(data) != page.size:
        raise _PAGE_FORM.damaged(url, f"it has {len(data)} bytes, and {page.size} were written")
    fields = _PAGE_FORM.decode(_decompressed(_PAGE_FORM, data, url), url)
    with _PAGE_FORM.reading(url):
        texts = {
            directory: (int(count), _text(text)) for directory, (count, text) in fields["directories"].items()
        }
        entries = sum(count for count, _ in texts.values())
        if entries != page.entries:
            raise ValueError(f"{entries} entries, and {page.entries} were written")
        return Layer({}, texts, url)
    raise AssertionError


def _decompressed(form: Framed, data: bytes, url: str) -> bytes:
    """Return the bytes of a manifest or a page, at most `MAX_BYTES`.

    Raises:
        CorruptFileError: They are damaged, cut or too long.
    """
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, MAX_BYTES)
    except zlib.error:
        raise form.damaged(url, "it cannot be decompressed") from None
    if not stream.eof or stream.unused_data:
        raise form.damaged(url, "it is cut, or too long")
    return plain


def encode_condemned(since_ms: Mapping[str, int]) -> bytes:
    """Return the bytes of the list of condemned objects."""
    return zlib.compress(json.dumps(since_ms).encode(), _LEVEL)


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


@lru_cache(maxsize=2048)  # a commit changes ten of the entries, and encodes all that `CHANGES_BYTES` hold
def _line(path: str, entry: Entry | None) -> str:
    """Return the JSON of an entry under its path."""
    return json.dumps({path: None if entry is None else entry.to_json()})[1:-1]


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
        self.parts = dict(sorted(parts.items()))
        self._positions = list(self.parts)
        self._longest = max((len(part) for part in self.parts.values()), default=0)

    def encode(self) -> bytes:
        """Return the bytes that are stored."""
        packed = (self._HEAD.pack(at, len(part)) + part for at, part in self.parts.items())
        return zlib.compress(b"".join(packed), _LEVEL)

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

    def apply(self, buffer: bytearray, start: int) -> None:
        """Replace bytes in `buffer`, which holds the file from `start` on."""
        end = start + len(buffer)
        for index in range(bisect_left(self._positions, start - self._longest), len(self._positions)):
            at = self._positions[index]
            if at >= end:
                return
            part = self.parts[at]
            first, last = max(at, start), min(at + len(part), end)
            if first < last:
                buffer[first - start : last - start] = part[first - at : last - at]


# ---------------------------------------------------------------- one version, with its pages


class ManifestVersion:
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
        directory, _, name = path.rpartition("/")
        for layer in self.layers:
            files = layer.files(directory)
            if name in files:
                return files[name]
        return None

    def children(self, directory: str) -> Mapping[str, Entry | None]:
        """Return the names in a directory with their files; None for a directory. "" is the root."""
        children = self._children.get(directory)
        if children is None:
            merged: dict[str, Entry | None] = {}
            for layer in reversed(self.layers):
                for name, entry in layer.files(directory).items():
                    if entry is None:
                        merged.pop(name, None)
                    else:
                        merged[name] = entry
            for layer in self.layers:
                for name in layer.directories.get(directory, ()):
                    if name not in merged and self._exists(f"{directory}/{name}" if directory else name):
                        merged[name] = None
            children = self._children[directory] = merged
        return children

    def _exists(self, directory: str) -> bool:
        """Return whether there is a file below a directory. Decodes as little as possible."""
        layers = [layer for layer in self.layers if layer.has(directory)]
        if layers == [self.layers[-1]]:
            return True  # the oldest layer has no removed files
        return bool(self.children(directory))

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
            for path, entry in layer.entries():
                if path not in visited:
                    visited.add(path)
                    if entry is not None:
                        yield path, entry

    def changed_since(self, base: ManifestVersion) -> set[str]:
        """Return the paths whose files differ from those of another version."""
        ours, theirs = self.manifest.changes, base.manifest.changes
        paths = ours.keys() ^ theirs.keys()
        paths |= {path for path in ours.keys() & theirs.keys() if ours[path] != theirs[path]}
        # A path that only pages of both versions have is the same in both: their order is the same.
        for layer in (*base._without(self)[1:], *self._without(base)[1:]):
            paths |= {path for path, _ in layer.entries()}
        return {path for path in paths if base.entry(path) != self.entry(path)}

    def changed_in_root(self, base: ManifestVersion) -> set[str]:
        """Return the names in the root whose files differ from those of another version."""
        layers = () if base is self else (*base._without(self), *self._without(base))
        found = {name for layer in layers if layer.has_entries("") for name in layer.files("")}
        return {name for name in found if base.entry(name) != self.entry(name)}

    def _without(self, other: ManifestVersion) -> list[Layer]:
        """Return the layers without the pages that another version has, too."""
        pages = zip(self.layers[1:], reversed(self.manifest.pages), strict=True)
        return [self.layers[0], *(layer for layer, page in pages if page not in other.manifest.pages)]

    def objects(self) -> set[str]:
        """Return every object that the version names: those of files, pages and the condemned list."""
        named = {key for _, entry in self.files() for key in entry.objects()}
        named.update(page.object for page in self.manifest.pages)
        if self.manifest.condemned is not None:
            named.add(self.manifest.condemned)
        return named


class Layer:
    """Entries of a page, or of the manifest itself, by directory.

    Args:
        entries: Entries by path.
        texts: The entries of other directories as a page has them, each with their number. They are decoded
            when they are needed: a process that uses one partition of a large log decodes no other.
        url: The page.
    """

    def __init__(
        self, entries: Changes, texts: Mapping[str, tuple[int, str]] | None = None, url: str = ""
    ) -> None:
        self.directories: dict[str, set[str]] = {}
        """The names of the directories in each directory."""
        self._files: dict[str, dict[str, Entry | None]] = {}
        self._texts = dict(texts or {})
        self._url = url
        for path, entry in entries.items():
            directory, _, name = path.rpartition("/")
            self._files.setdefault(directory, {})[name] = entry
        for directory in (*self._files, *self._texts):
            below = directory
            while below:
                above, _, last = below.rpartition("/")
                self.directories.setdefault(above, set()).add(last)
                below = above

    def with_entries(self) -> list[str]:
        """Return the directories of which the layer has entries."""
        return sorted({*self._texts, *self._files})  # texts first: they become files

    def has_entries(self, directory: str) -> bool:
        """Return whether the layer has entries in a directory."""
        return directory in self._texts or directory in self._files

    def text(self, directory: str) -> tuple[int, str] | None:
        """Return number and JSON of the entries of a directory; None if they are decoded."""
        return self._texts.get(directory)

    def has(self, directory: str) -> bool:
        """Return whether there are entries in a directory, or below it."""
        return self.has_entries(directory) or directory in self.directories

    def files(self, directory: str) -> Mapping[str, Entry | None]:
        """Return the entries of a directory by name."""
        files = self._files.get(directory)
        if files is None:
            stored = self._texts.get(directory)
            if stored is None:  # no such directory, or another thread has just decoded it
                return self._files.get(directory, {})
            count, text = stored
            with _PAGE_FORM.reading(self._url):
                files = _of_json(json.loads(text))
                if len(files) != count:
                    raise ValueError(f"{len(files)} entries in {directory}, and {count} were written")
            self._files[directory] = files
            self._texts.pop(directory, None)
        return files

    def entries(self) -> Iterator[tuple[str, Entry | None]]:
        """Iterate over all entries with their paths."""
        for directory in self.with_entries():
            for name, entry in self.files(directory).items():
                yield (f"{directory}/{name}" if directory else name), entry
