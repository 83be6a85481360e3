"""Provide `MemoryFiles`: a directory tree in memory, with inodes like a filesystem.

A rename moves a name; a removed file stays readable through open handles. Contents are shared with the image
of origin until they are written to. `open_handles` lists handles that were opened and not closed.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Mapping
from typing import Any

from lastword.errors import (
    FileTakenError,
    FileVanishedError,
    LastwordError,
    LogDirLockedError,
    StorageError,
    SyncFailedError,
)
from lastword.files import FileFacts, FileLock, Files, Handle

ROOT = "/in-memory"
"""The root of all trees. No such directory exists: a call that bypasses `Files` finds no file."""
_normal = functools.lru_cache(1 << 12)(os.path.normpath)


class Node:
    __slots__ = ("data", "inode", "locked", "mtime_ms")

    def __init__(self, inode: int, data: bytes | bytearray = b"", mtime_ms: int = 0) -> None:
        self.inode = inode
        self.data = data
        self.mtime_ms = mtime_ms
        self.locked = False

    @property
    def writable(self) -> bytearray:
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        return self.data


class MemoryLock(FileLock):
    def __init__(self, node: Node, path: str) -> None:
        node.locked = True
        self._node = node
        self.path = path

    def release(self) -> None:
        self._node.locked = False

    def drop(self) -> None:
        """Drop a released directory: another process may use it by then."""


class MemoryFiles(Files):
    """A filesystem in memory. `tree`: contents by path relative to `ROOT`, None for a directory."""

    def __init__(
        self, tree: Mapping[str, bytes | None] | None = None, mtimes: Mapping[str, int] | None = None
    ) -> None:
        self._folders: dict[str, dict[str, Node | None]] = {ROOT: {}}
        self._next_inode = 1
        self._failed: SyncFailedError | None = None
        self.open_handles: dict[int, str] = {}
        for path, data in sorted((tree or {}).items()):
            full = f"{ROOT}/{path}"
            parent, _, name = full.rpartition("/")
            if data is None:
                self._folders[full] = {}
                self._folders[parent][name] = None
            else:
                self._folders[parent][name] = self._node(data, (mtimes or {}).get(path, 0))

    def _node(self, data: bytes | bytearray = b"", mtime_ms: int = 0) -> Node:
        self._next_inode += 1
        return Node(self._next_inode, data, mtime_ms)

    def tree(self) -> dict[str, bytes | None]:
        """Return all contents by path relative to `ROOT`."""
        contents: dict[str, bytes | None] = {}
        for folder, entries in self._folders.items():
            above = folder[len(ROOT) + 1 :]
            for name, node in entries.items():
                path = f"{above}/{name}" if above else name
                contents[path] = None if node is None else bytes(node.data)
        return contents

    def mtimes(self) -> dict[str, int]:
        return {
            f"{folder}/{name}"[len(ROOT) + 1 :]: node.mtime_ms
            for folder, entries in self._folders.items()
            for name, node in entries.items()
            if node is not None
        }

    # ---- finding

    def _split(self, path: Any) -> tuple[dict[str, Node | None], str, str]:
        """Return (entries of the parent, name, path)."""
        full = _normal(os.fspath(path))
        parent, _, name = full.rpartition("/")
        entries = self._folders.get(parent)
        if entries is None:
            raise FileVanishedError(f"no directory {parent}", file=full, errno=errno.ENOENT)
        return entries, name, full

    def _entry(self, path: Any) -> Node | bool | None:
        """Return the node; None for a directory, False if the path does not exist."""
        full = _normal(os.fspath(path))
        if full in self._folders:
            return None
        parent, _, name = full.rpartition("/")
        return self._folders.get(parent, {}).get(name, False)

    def _file(self, path: Any) -> Node:
        node = self._entry(path)
        if node is False:
            raise FileVanishedError(f"no file {path}", file=os.fspath(path), errno=errno.ENOENT)
        if not isinstance(node, Node):
            raise StorageError(f"{path} is a directory", file=os.fspath(path), errno=errno.EISDIR)
        return node

    # ---- looking

    def open_read(self, path: Any) -> Handle:
        return MemoryHandle(self, self._file(path), os.fspath(path))

    def listdir(self, path: Any) -> list[str]:
        entries = self._folders.get(_normal(os.fspath(path)))
        if entries is None:
            raise FileVanishedError(f"no directory {path}", file=os.fspath(path), errno=errno.ENOENT)
        return sorted(entries)

    def stat(self, path: Any) -> FileFacts | None:
        node = self._entry(path)
        if node is False:
            return None
        if not isinstance(node, Node):
            return FileFacts(0, 0, 1)
        return FileFacts(len(node.data), node.mtime_ms, node.inode)

    def is_dir(self, path: Any) -> bool:
        return _normal(os.fspath(path)) in self._folders

    def free_bytes(self, path: Any) -> int:
        return 1 << 40

    # ---- changing

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def fail(self, path: str) -> SyncFailedError:
        """Store a failed sync: all files are offline from then on."""
        self._failed = SyncFailedError.of(path, "EIO", ROOT, errno.EIO)
        return self._failed

    def guard(self, root: Any) -> None:
        self._failed = None

    def offline(self, path: Any) -> LastwordError | None:
        return self._failed

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        self._check()
        entries, name, full = self._split(path)
        node = entries.get(name)
        if node is None:
            if name in entries:
                raise StorageError(f"{full} is a directory", file=full, errno=errno.EISDIR)
            if not (create or exclusive):
                raise FileVanishedError(f"no file {full}", file=full, errno=errno.ENOENT)
            node = entries[name] = self._node()
        elif exclusive:
            raise FileTakenError(f"{full} is there", file=full, errno=errno.EEXIST)
        return MemoryHandle(self, node, full)

    def mkdir(self, path: Any) -> None:
        self._check()
        entries, name, full = self._split(path)
        if name in entries:
            raise FileTakenError(f"{full} is there", file=full, errno=errno.EEXIST)
        entries[name] = None
        self._folders[full] = {}

    def rmdir(self, path: Any) -> None:
        self._check()
        entries, name, full = self._split(path)
        if self._folders.get(full) != {}:
            raise StorageError(f"{full} is not an empty directory", file=full, errno=errno.ENOTEMPTY)
        del entries[name], self._folders[full]

    def rename(self, source: Any, target: Any) -> None:
        self._check()
        old_entries, old_name, old = self._split(source)
        new_entries, new_name, new = self._split(target)
        if old_name not in old_entries:
            raise FileVanishedError(f"no file {old}", file=old, errno=errno.ENOENT)
        if old in self._folders:
            for folder in [f for f in self._folders if f == old or f.startswith(old + "/")]:
                self._folders[new + folder[len(old) :]] = self._folders.pop(folder)
        new_entries[new_name] = old_entries.pop(old_name)

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        self._check()
        node = self._entry(path)
        if node is False and missing_ok:
            return
        entries, name, full = self._split(path)
        if node is False:
            raise FileVanishedError(f"no file {full}", file=full, errno=errno.ENOENT)
        if node is None:
            raise StorageError(f"{full} is a directory", file=full, errno=errno.EISDIR)
        del entries[name]

    def fsync_dir(self, path: Any) -> None:
        self._check()
        self.listdir(path)

    def set_mtime(self, path: Any, ms: int) -> None:
        self._check()
        self._file(path).mtime_ms = ms

    def lock(self, path: Any) -> FileLock:
        entries, name, full = self._split(path)
        node = entries.get(name)
        if node is None:
            node = entries[name] = self._node()
        if node.locked:
            raise LogDirLockedError.held(os.path.dirname(full), os.getpid(), "this process")
        return MemoryLock(node, full)


class MemoryHandle(Handle):
    def __init__(self, files: MemoryFiles, node: Node, path: str) -> None:
        self._files = files
        self._node = node
        self.path = path
        self._open = True
        files.open_handles[id(self)] = path

    def pread(self, n: int, position: int) -> bytes:
        return bytes(self._node.data[position : position + n])

    def pread_into(self, buffer: Any, position: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self._node.data[position : position + len(view)]
        view[: len(data)] = data
        return len(data)

    def append(self, data: Any) -> int:
        self._files._check()
        content = self._node.writable
        position = len(content)
        content += memoryview(data).cast("B")
        return position

    def pwrite(self, data: Any, position: int) -> None:
        self._files._check()
        raw = memoryview(data).cast("B")
        content = self._node.writable
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(raw)] = raw

    def truncate(self, size: int) -> None:
        self._files._check()
        content = self._node.writable
        del content[size:]
        content.extend(bytes(size - len(content)))

    def fsync(self) -> None:
        self._files._check()

    def stat(self) -> FileFacts:
        return FileFacts(len(self._node.data), self._node.mtime_ms, self._node.inode)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._files.open_handles.pop(id(self), None)

    def __del__(self) -> None:
        self.close()
