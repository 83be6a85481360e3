"""`BucketFiles`: the files of one version of a log in a bucket, as a `Files`.

Reading gets ranges of immutable objects. Changing happens in private: new files are in memory or in a local
scratch directory (scratch.py), and renames and removals are entries of a dict. The stored log stays as it is
until a commit (`lastword.bucket.commit`) uploads the new files and swaps the manifest. So the log directory,
the recovery, the cleaner and every verb run over a bucket as they run over a directory, and a process that
dies in the middle of them leaves nothing behind but its scratch directory.

A lock, a sync and an owner have no meaning in private: these calls do nothing.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache

from lastword.bucket.manifest import Entry, ManifestVersion, Patch
from lastword.bucket.reading import CHANGE_BLOCKS, FIRST_BYTES, ObjectReads
from lastword.bucket.scratch import LocalFile, ScratchSpace
from lastword.errors import FileTakenError, FileVanishedError, LastwordError, NotPermittedError, StorageError
from lastword.files import FileFacts, FileLock, Files, Handle
from lastword.files.interface import Buffer, Path, Steps
from lastword.segment import names

REQUEST_BYTES = 3_000_000
"""The cost of a request, in bytes that a connection reads meanwhile: 30 ms at 100 MB/s."""
DERIVED_COST = 6.0
"""The cost of a garbage index, in bytes and segments of the scan that it avoids. By list price a request to
write costs 12.5 times one to read; half of the cost of a scan is its CPU time."""
REPLAYED_BYTES = 12
"""Each commit ends with a roll. So the snapshots of many producers take a twelfth of the bytes of the batches
at most."""
REQUESTS_OF_A_SEGMENT = 2
"""A reader of a segment gets its log, and its indexes, which a commit puts into one object."""


@dataclass(frozen=True, slots=True)
class PatchedFile:
    """A stored file in which a few bytes were replaced since the version."""

    entry: Entry
    parts: dict[int, bytes]
    number: int


File = LocalFile | PatchedFile | Entry
Node = File | None
"""A file, or None for a directory."""


class BucketFiles(Files):
    """The files of a version, and private changes to them.

    Args:
        root: URL of the log: the path of its root directory.
        snapshot: The version.
        reads: Reads objects.
        scratch: The room of new files. None: nothing can be changed.
        rng: Source of the numbers of new files.
    """

    file_cost_bytes = float(REQUEST_BYTES * REQUESTS_OF_A_SEGMENT)
    takes_buffers = True
    derived_cost = DERIVED_COST
    replayed_bytes = REPLAYED_BYTES
    reuses_numbers = False
    sends_requests = True

    def __init__(
        self,
        root: str,
        snapshot: ManifestVersion,
        reads: ObjectReads,
        *,
        scratch: ScratchSpace | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.root = root
        self.snapshot = snapshot
        self._reads = reads
        self._scratch = scratch
        self._numbers = Numbers(rng or random.SystemRandom())
        self._lock = threading.RLock()
        self._own: dict[str, dict[str, Node]] = {}  # directories with a change: everything in them
        self._touched: dict[str, set[str]] = {}  # names that were changed, by directory

    def __repr__(self) -> str:
        return f"BucketFiles({self.root!r})"

    # -------------------------------------------------------------- names

    def _key(self, path: Path) -> str:
        """Return the path relative to the root; "" for the root itself."""
        return _key_below(self.root, os.fspath(path))

    def _children(self, directory: str) -> Mapping[str, Node]:
        own = self._own.get(directory)
        return self.snapshot.children(directory) if own is None else own

    def _changing(self, directory: str) -> dict[str, Node]:
        if self._scratch is None:
            raise NotPermittedError(
                f"{self.root} is open to read", remedy='open it with mode "a"', file=self.root
            )
        own = self._own.get(directory)
        if own is None:
            own = self._own[directory] = dict(self.snapshot.children(directory))
        return own

    def _put(self, key: str, node: Node) -> None:
        directory, _, name = key.rpartition("/")
        self._check_place(key, is_file=node is not None)
        self._place(directory, name, node)

    def _check_place(self, key: str, *, is_file: bool = True) -> None:
        """Raise StorageError unless a directory is above the path; for a file, if one is at the path."""
        above, path = key.rpartition("/")[0], self._url(key)
        if not self._is_directory(above):
            raise self._no_directory(above)
        if is_file and self._is_directory(key):
            raise StorageError(f"{path} is a directory", remedy="use another name", file=path)

    def _place(self, directory: str, name: str, node: Node) -> None:
        self._changing(directory)[name] = node
        self._touched.setdefault(directory, set()).add(name)

    def _remove(self, key: str) -> None:
        directory, _, name = key.rpartition("/")
        self._changing(directory).pop(name, None)
        self._touched.setdefault(directory, set()).add(name)

    def _is_directory(self, key: str) -> bool:
        if not key:
            return self._scratch is not None or bool(self.snapshot.children(""))
        directory, _, name = key.rpartition("/")
        children = self._children(directory)
        return name in children and children[name] is None

    def _file(self, key: str) -> Node:
        directory, _, name = key.rpartition("/")
        return self._children(directory).get(name) if name else None

    def _no_directory(self, key: str) -> StorageError:
        path = self._url(key)
        if self._file(key) is not None:
            return StorageError(f"{path} is a file", remedy="use another name", file=path)
        return _vanished(path)

    def _url(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    # -------------------------------------------------------------- read

    def without_requests(self) -> AbstractContextManager[None]:
        """As `Files.without_requests`."""
        return self._reads.without_requests()

    def check_may_wait(self) -> None:
        """As `Files.check_may_wait`."""
        self._reads.check_may_wait()

    def open_read(self, path: Path) -> Handle:
        """As `Files.open_read`."""
        with self._lock:
            node = self._file(self._key(path))
            if node is None:
                raise _vanished(os.fspath(path))
            if isinstance(node, LocalFile):
                return node.open(os.fspath(path))
            if self._scratch is not None:
                return _StoredHandle(self, os.fspath(path), self._key(path), node)
        return self._open_stored(os.fspath(path), node)

    def read_bytes(self, path: Path) -> bytes:
        """As `Files.read_bytes`. A file that was replaced meanwhile is read as it is now."""
        while True:
            entry = self._file(self._key(path))
            if isinstance(entry, Entry) and entry.object is None:
                return entry.data
            try:
                if isinstance(entry, Entry) and entry.size <= FIRST_BYTES:
                    return self._reads.whole(entry)
                return super().read_bytes(path)
            except FileVanishedError:
                if self._file(self._key(path)) in (None, entry):
                    raise

    def checked_bytes(self, path: Path) -> bytes | None:
        """As `Files.checked_bytes`: the checksum is that of the manifest or of a page."""
        file = self._file(self._key(path))
        return file.data if isinstance(file, Entry) and file.object is None else None

    def file(self, path: Path) -> Node:
        """Return the file at a path as it is in the private copy; None: there is none."""
        with self._lock:
            return self._file(self._key(path))

    def object_of(self, path: Path) -> tuple[str, int, int] | None:
        """Return the URL of the object that holds a stored file, and the file's first and last byte in it."""
        entry = self._file(self._key(path))
        if not isinstance(entry, Entry) or entry.object is None:
            return None
        return f"{self.root}/{entry.object}", entry.position, entry.position + entry.size - 1

    def _open_stored(self, path: str, file: Entry | PatchedFile) -> Handle:
        blocks = 1 if self._scratch is None else CHANGE_BLOCKS
        if isinstance(file, Entry):
            return self._reads.open(path, file, next_file=self._next_log, blocks=blocks)
        entry = file.entry._replace(number=file.number)
        return self._reads.open(path, entry, Patch(file.parts), self._next_log, blocks)

    def _next_log(self, path: str) -> tuple[str, Entry] | None:
        """Return the stored segment after another one: a scan reads it next."""
        key = self._key(path)
        directory, _, name = key.rpartition("/")
        following = self.snapshot.next_log(directory, name) if name.endswith(names.LOG) else None
        return None if following is None else (self._url(f"{directory}/{following[0]}"), following[1])

    def listdir(self, path: Path) -> list[str]:
        """As `Files.listdir`."""
        with self._lock:
            key = self._key(path)
            if not self._is_directory(key):
                raise _vanished(os.fspath(path))
            return sorted(self._children(key))

    def stat(self, path: Path) -> FileFacts | None:
        """As `Files.stat`."""
        with self._lock:
            key = self._key(path)
            node = self._file(key)
            if node is None:
                return FileFacts(0, 0, 0, "dir") if self._is_directory(key) else None
        if isinstance(node, LocalFile):
            return node.facts()
        stored = node.entry if isinstance(node, PatchedFile) else node
        return FileFacts(stored.size, stored.mtime_ms, node.number)

    def is_dir(self, path: Path) -> bool:
        """As `Files.is_dir`."""
        with self._lock:
            return self._is_directory(self._key(path))

    # -------------------------------------------------------------- change, in private

    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> Handle:
        """As `Files.open_append`.

        A stored file is copied to the scratch directory when it is changed, unless a few of its bytes are
        replaced: then only these are kept.
        """
        with self._lock:
            key = self._key(path)
            node = self._file(key)
            if node is None and not create and not self._is_directory(key):
                raise _vanished(os.fspath(path))
            if node is not None and exclusive:
                raise FileTakenError(f"{os.fspath(path)} exists", remedy="use another name", file=path)
            if isinstance(node, PatchedFile) or (isinstance(node, Entry) and node.object is not None):
                self._changing(key.rpartition("/")[0])  # refused if nothing may be changed
                return _StoredHandle(self, os.fspath(path), key, node)
            local = node if isinstance(node, LocalFile) else self.local_copy(key, node)
            return local.open(os.fspath(path))

    def local_copy(self, key: str, file: Entry | PatchedFile | None = None) -> LocalFile:
        """Return a new local file with the bytes of a stored one, under its path; an empty one without it."""
        directory, _, name = key.rpartition("/")
        self._check_place(key)
        self._changing(directory)
        assert self._scratch is not None
        number = self._numbers.next() if file is None else file.number  # as an inode, which a change keeps
        if isinstance(file, Entry) and file.object is None:
            local = LocalFile(self._scratch, number, file.data)
            file = None
        else:
            local = LocalFile(self._scratch, number)
        if file is not None:
            with local.open(self._url(key)) as handle, self._open_stored(self._url(key), file) as source:
                for position in range(0, source.size(), _COPY_BYTES):
                    handle.append(source.pread(_COPY_BYTES, position))
        self._place(directory, name, local)
        return local

    def writing_atomic(
        self, path: Path, data: bytes | Iterable[bytes], *, sync_name: bool = True
    ) -> Steps[None]:
        """As `Files.writing_atomic`. No other process reads the copy, so bytes need no temporary file."""
        if not isinstance(data, bytes):
            yield from super().writing_atomic(path, data, sync_name=sync_name)
            return
        with self._lock:
            key = self._key(path)
            replaced = self._file(key)
            self.local_copy(key, Entry(self._numbers.next(), len(data), 0, data=data))
            self._drop(replaced)

    def patch(self, key: str, position: int, part: bytes) -> PatchedFile:
        """Replace a few bytes of a stored file; return the file as it is now."""
        with self._lock:
            file = self._file(key)
            if isinstance(file, PatchedFile):
                file.parts[position] = part
                return file
            assert isinstance(file, Entry)
            stored = self._reads.patch_of(file)
            parts = {} if stored is None else dict(stored.parts)
            patched = PatchedFile(file._replace(patch=None), {**parts, position: part}, file.number)
            self._put(key, patched)
            return patched

    def adopt(self, entries: Mapping[str, Entry]) -> None:
        """Add files whose objects are uploaded already, with the directories that they need."""
        with self._lock:
            for key, entry in entries.items():
                above = key.rpartition("/")[0]
                missing = []
                while above and not self._is_directory(above):
                    missing.append(above)
                    above = above.rpartition("/")[0]
                for directory in reversed(missing):
                    self.mkdir(self._url(directory))
                self._put(key, entry)

    def mkdir(self, path: Path) -> None:
        """As `Files.mkdir`."""
        with self._lock:
            key = self._key(path)
            if self._file(key) is not None or self._is_directory(key):
                raise FileTakenError(f"{os.fspath(path)} exists", remedy="use another name", file=path)
            self._put(key, None)
            self._own[key] = {}

    def rmdir(self, path: Path) -> None:
        """As `Files.rmdir`."""
        with self._lock:
            key = self._key(path)
            if not self._is_directory(key):
                raise self._no_directory(key)
            if self._children(key):
                raise StorageError(f"{os.fspath(path)} is not empty", remedy="remove its files", file=path)
            self._remove(key)
            self._own[key] = {}

    def rename(self, source: Path, target: Path) -> None:
        """As `Files.rename`. No byte is copied: the target names the stored object of the source."""
        with self._lock:
            self._move(self._key(source), self._key(target), os.fspath(source))

    def _move(self, source: str, target: str, shown: str) -> None:
        if self._is_directory(source):
            if not self._is_directory(target):
                self._put(target, None)
                self._own[target] = {}
            for name in list(self._children(source)):
                self._move(f"{source}/{name}", f"{target}/{name}", shown)
            self._remove(source)
            return
        node = self._file(source)
        if node is None:
            raise _vanished(shown)
        if source == target:
            return
        replaced = self._file(target)
        self._put(target, node)
        self._remove(source)
        self._drop(replaced)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """As `Files.unlink`."""
        with self._lock:
            key = self._key(path)
            node = self._file(key)
            if self._is_directory(key):
                raise StorageError(f"{os.fspath(path)} is a directory", remedy="use rmdir", file=path)
            if node is None:
                if missing_ok:
                    return
                raise _vanished(os.fspath(path))
            self._remove(key)
            self._drop(node)

    def _drop(self, node: Node) -> None:
        if isinstance(node, LocalFile):
            node.remove()

    def set_mtime(self, path: Path, ms: int) -> None:
        """As `Files.set_mtime`."""
        with self._lock:
            key = self._key(path)
            node = self._file(key)
            if node is None:
                raise _vanished(os.fspath(path))
            if isinstance(node, LocalFile):
                node.set_mtime(ms)
            elif isinstance(node, PatchedFile):
                self._put(key, replace(node, entry=node.entry._replace(mtime_ms=ms)))
            else:
                self._put(key, node._replace(mtime_ms=ms))

    # -------------------------------------------------------------- without meaning in private

    def fsync_dir(self, path: Path) -> None:
        """Do nothing: a change is durable when it is committed."""

    def lock(self, path: Path) -> FileLock:
        """Return a lock that excludes no other process: the swap of a commit decides between them."""
        return _NoLock()  # type: ignore[return-value]  # it has all that a holder of a lock uses

    def free_bytes(self, path: Path) -> int:
        """Return the room on the drive of the scratch directory; a bucket is never full."""
        return _ENDLESS if self._scratch is None else self._scratch.free_bytes()

    def identity(self, path: Path) -> str:
        """As `Files.identity`: two private copies of a partition are different directories."""
        return f"{self._key(path)} of {id(self)}"

    def guard(self, root: Path) -> None:
        """Do nothing: no sync can fail."""

    def offline(self, path: Path) -> LastwordError | None:
        """Return None: no sync can fail."""
        return None

    # -------------------------------------------------------------- for the commit

    def changes(self) -> Iterator[tuple[str, Node]]:
        """Iterate over the paths that were changed, with the file that is there now; None: it was removed."""
        with self._lock:
            for directory, touched in self._touched.items():
                own = self._own[directory]
                for name in sorted(touched):  # so that a test can repeat the requests of a commit
                    path, node = f"{directory}/{name}" if directory else name, own.get(name)
                    stored = self.snapshot.entry(path)
                    if isinstance(node, LocalFile) and node.is_stored_as(stored):
                        continue
                    if node != stored:  # else a directory, or a file that came and went
                        yield path, node

    def rebase(self, snapshot: ManifestVersion, entries: Mapping[str, Entry | None]) -> None:
        """Take the version in which the changes are stored, so that later changes are those to it.

        A file that is open stays a local one: its handles write to it.
        """
        with self._lock:
            self.snapshot = snapshot
            for directory, touched in self._touched.items():
                own = self._own[directory]
                for name in list(touched):
                    node = own.get(name)
                    if isinstance(node, LocalFile) and node.is_open:
                        node.is_stored = True
                        continue
                    touched.discard(name)
                    if isinstance(node, LocalFile):
                        node.remove()
                    if node is not None:
                        path = f"{directory}/{name}" if directory else name
                        own[name] = entries[path] if path in entries else snapshot.entry(path)


@lru_cache(maxsize=4096)
def _key_below(root: str, path: str) -> str:
    """Return a path relative to the root; "" for the root itself.

    Raises:
        StorageError: The path is not below the root.
    """
    scheme, _, rest = root.partition("://")
    for prefix in (root, f"{scheme}:/{rest}"):  # the second is what os.path.normpath makes of a URL
        below = path.removeprefix(prefix)
        if path.startswith(prefix) and (not below or below.startswith("/")):
            if "//" not in below and "/." not in below and below[-1:] != "/":
                return below[1:]
            return "/".join(part for part in below.split("/") if part not in ("", "."))
    raise StorageError(f"{path} is not in {root}", remedy=f"give a path below {root}", file=path)


_COPY_BYTES = 8 << 20
_PATCH_BYTES = 64
"""A longer write makes a stored file a local one."""
_ENDLESS = 1 << 60
_NUMBERS = 1 << 62


class Numbers:
    """The numbers of new files: consecutive ones from a random number on.

    No other process has the same ones by chance, and the numbers of a commit take few bytes, compressed.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last = 0

    def next(self) -> int:
        """Return the number of a new file."""
        self._last = self._last + 1 if self._last else self._rng.randrange(1, _NUMBERS)
        return self._last


def _vanished(path: str) -> FileVanishedError:
    return FileVanishedError(f"{path} does not exist", remedy="list the directory again", file=path)


class _NoLock:
    """A lock that is always held: a private copy has no other writers."""

    held = True

    def check(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Do nothing."""


class _StoredHandle(Handle):
    """A stored file of a private copy. It becomes a local file when more than a few bytes change.

    As with a file of a drive, each open handle has the changes that are made through another one.
    """

    def __init__(self, files: BucketFiles, path: str, key: str, file: Entry | PatchedFile) -> None:
        self.path = path
        self._files = files
        self._key = key
        self._stored: Entry | PatchedFile | None = file
        self._handle = files._open_stored(path, file)
        self._patched = False  # since the handle was opened

    def _take_changes(self) -> None:
        stored = self._stored
        now = None if stored is None else self._files.file(self.path)
        if now is stored or now is None or stored is None or now.number != stored.number:
            return  # of another file, if it was renamed or replaced
        if isinstance(now, LocalFile):
            self._handle.close()
            self._handle, self._stored = now.open(self.path), None
        else:
            self._stored, self._patched = now, True

    def _reading(self) -> Handle:
        self._take_changes()
        if self._patched and self._stored is not None:
            self._handle.close()
            self._handle, self._patched = self._files._open_stored(self.path, self._stored), False
        return self._handle

    def _local(self) -> Handle:
        self._take_changes()
        if self._stored is not None:
            local = self._files.local_copy(self._key, self._stored)
            self._handle.close()
            self._handle = local.open(self.path)
            self._stored = None
        return self._handle

    def pread(self, n: int, position: int) -> bytes:
        """As `Handle.pread`."""
        return self._reading().pread(n, position)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """As `Handle.pread_into`."""
        return self._reading().pread_into(buffer, position)

    def will_read(self, start: int, end: int) -> None:
        """As `Handle.will_read`."""
        self._reading().will_read(start, end)

    def will_read_back(self) -> None:
        """As `Handle.will_read_back`."""
        self._reading().will_read_back()

    def will_read_pieces(self) -> None:
        """As `Handle.will_read_pieces`."""
        self._reading().will_read_pieces()

    def ends_scan(self) -> None:
        """As `Handle.ends_scan`."""
        self._reading().ends_scan()

    def append(self, data: Buffer) -> int:
        """As `Handle.append`."""
        return self._local().append(data)

    def pwrite(self, data: Buffer, position: int) -> None:
        """As `Handle.pwrite`."""
        part = bytes(data)
        self._take_changes()
        if self._stored is None or len(part) > _PATCH_BYTES or position + len(part) > self.size():
            self._local().pwrite(data, position)
            return
        self._stored = self._files.patch(self._key, position, part)
        self._patched = True

    def truncate(self, size: int) -> None:
        """As `Handle.truncate`."""
        if size != self.size():
            self._local().truncate(size)

    def close(self) -> None:
        """As `Handle.close`."""
        self._handle.close()

    def fsync(self) -> None:
        """Do nothing: a change is durable when it is committed."""

    def stat(self) -> FileFacts:
        """As `Handle.stat`."""
        return self._reading().stat()
