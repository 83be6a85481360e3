"""A directory of `Files` as an `ObjectStore`: the table has one kind of storage."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lastword.errors import (
    FileTakenError,
    FileVanishedError,
    ObjectTakenError,
    ObjectVanishedError,
    SwapRefusedError,
    TruncatedObjectError,
)
from lastword.files import Files
from lastword.objects.interface import Buffer, ObjectFacts, ObjectStore, ObjectVersion, StoredObject

SCRATCH = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
"""The name of a file that `create` has not linked yet."""
NO_VERSION = ObjectVersion(None, None)


class DirectoryStore(ObjectStore):
    """The files below a directory. A create is a link, which fails if the name exists."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.url = os.path.normpath(path)
        self._root = str(Path(path).absolute())

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key)

    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject:
        """Read a whole file. Files have no versions: `unless` is not compared."""
        path = self._path(key)
        try:
            with self._files.open_read(path) as handle:
                facts = handle.stat()
                return StoredObject(handle.pread(facts.size, 0), NO_VERSION, facts.mtime_ms)
        except FileVanishedError:
            raise ObjectVanishedError.of(path) from None

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Read exactly `size` bytes from position `start`."""
        path = self._path(key)
        try:
            with self._files.open_read(path) as handle:
                data = handle.pread(size, start)
        except FileVanishedError:
            raise ObjectVanishedError.of(path) from None
        if len(data) != size:
            raise TruncatedObjectError.of(path, start + size, start + len(data))
        return data

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write a file under a name that was never used; durable when the call returns."""
        path = self._path(key)
        self._make_folder(os.path.dirname(path))
        self._write(path, data if isinstance(data, list | tuple) else [data])
        self._files.fsync_dir(os.path.dirname(path))

    def put_file(self, key: str, path: str) -> None:
        """Write a file from another one."""
        self.put(key, self._files.read_bytes(path))

    def create(self, key: str, data: Buffer) -> ObjectVersion:
        """Write a file only if there is none of this name; durable when the call returns."""
        path = self._path(key)
        folder, name = os.path.split(path)
        self._make_folder(folder)
        scratch = os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp")
        try:
            self._write(scratch, [data])
            self._files.link(scratch, path)
        except FileTakenError:
            raise ObjectTakenError.of(path) from None
        finally:
            self._files.unlink(scratch, missing_ok=True)
        self._files.fsync_dir(folder)
        return NO_VERSION

    def swap(self, key: str, data: Buffer, version: ObjectVersion) -> ObjectVersion:
        """Refuse: a directory has no versions of files."""
        raise SwapRefusedError.of(self._path(key))

    def facts(self, key: str) -> ObjectFacts | None:
        """Return the facts of a file; None if there is none."""
        facts = self._files.stat(self._path(key))
        return None if facts is None or facts.kind == "dir" else ObjectFacts(key, facts.size, facts.mtime_ms)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Return the files below a folder, in the order of their names."""
        folder = self._path(prefix.rstrip("/"))
        if not self._files.is_dir(folder):
            return
        for name in self._files.listdir(folder):
            key = os.path.join(prefix.rstrip("/"), name)
            if self._files.is_dir(self._path(key)):
                yield from self.list(key)
            elif (facts := self.facts(key)) is not None:
                yield facts

    def delete(self, keys: Sequence[str]) -> None:
        """Remove files. A missing file is no error."""
        for key in keys:
            self._files.unlink(self._path(key), missing_ok=True)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _write(self, path: str, buffers: Sequence[Buffer]) -> None:
        with self._files.open_append(path, create=True, exclusive=True) as handle:
            for data in buffers:
                handle.append(data)
            handle.fsync()

    def _make_folder(self, folder: str) -> None:
        if not self._files.is_dir(folder):
            self._make_folder(os.path.dirname(folder))
            self._files.mkdir(folder)
            self._files.fsync_dir(os.path.dirname(folder))
