"""Provide `TravellingFiles`: a directory that changes between the file operations of its reader.

`TravellingFiles` is at one version of a `History`. Before each operation of the reader it advances by the
number of versions that its `Pace` gives, and reads the tree at that version. A handle refers to an inode: the
file stays readable after its name is removed, and appended data can be read. With `evicts`, handles are
sometimes reopened by name, as in a process with too many open files.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import threading
from collections.abc import Callable
from typing import Any

from lastword.errors import FileTakenError, FileVanishedError, LastwordError, ReadOnlyError, StorageError
from lastword.files import DirVersion, FileFacts, FileLock, Files, Handle
from lastword.partition import checkpoint_file
from tests.crash.memory import ROOT, MemoryFiles, Node
from tests.readers.history import Content, Folder, History

Pace = Callable[[int], int]
"""The number of versions to advance before the operation with this number."""

_normal = functools.lru_cache(1 << 12)(os.path.normpath)
OTHER_INODE = 1 << 32  # added to an inode number that an open file has already


def still(operation: int) -> int:
    return 0


def paused(at: int, jump: int) -> Pace:
    """Advance by `jump` versions before one operation; before the others by none."""
    return lambda operation: jump if operation == at else 0


def pace_of(rng: random.Random, versions: int) -> tuple[str, Pace]:
    """Return a random pace, with its description."""
    kind = rng.randrange(5)
    if kind == 0:
        at, jump = rng.randrange(60), rng.randrange(1, 120)
        return f"pause before {at} for {jump}", paused(at, jump)
    if kind == 1:
        at, gap = rng.randrange(40), rng.randrange(1, 30)
        first_jump, second_jump = rng.randrange(1, 80), rng.randrange(1, 80)
        return (
            f"pauses at {at}, {at + gap}",
            lambda n: first_jump if n == at else second_jump if n == at + gap else 0,
        )
    if kind == 2:
        share = rng.choice((0.1, 0.3, 0.6))
        return f"steps, {share}", lambda n: int(rng.random() < share)
    if kind == 3:
        most = rng.choice((2, 5, 12))
        return f"0 to {most} each", lambda n: rng.randrange(most + 1)
    share, most = rng.choice((0.03, 0.1)), rng.choice((40, 150))
    return f"jumps, {share}, {most}", lambda n: rng.randrange(most) if rng.random() < share else 0


class TravellingClock:
    """The clock at the current version. A sleep advances by at least one version."""

    def __init__(self, files: TravellingFiles) -> None:
        self._files = files
        self._slept = 0.0

    def now_ms(self) -> int:
        return self._files.history.files.clock_ms[self._files.now]

    def monotonic(self) -> float:
        return self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += max(0.0, seconds)
        self._files.pause()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()


class TravellingFiles(Files):
    """The files of one journey. A reader may write outside of the history's root, in memory.

    Attributes:
        now: the current version.
        trace: the versions at which operations were made.
        has_stamps: directories have versions and kinds, as on a drive; False: as in other storage.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._versions = history.files
        self._contents = history.files.contents
        self._handle_type = ReusedHandle if history.files.reuse else TravellingHandle
        self._last = history.last
        self._sorted: dict[int, list[str]] = {}
        self.side = MemoryFiles()
        self.start(0, still, random.Random(0))

    def start(
        self, version: int, pace: Pace, rng: random.Random, *, evicts: bool = False, has_stamps: bool = False
    ) -> None:
        """Begin another journey, perhaps at an earlier version: values of a later one must not be kept."""
        checkpoint_file._read_once.cache_clear()
        self.now = version
        self.operations = 0
        self.trace = [version]
        self.evicts = evicts
        self.has_stamps = has_stamps
        self._directory = FileFacts(0, 0, 1, "dir") if has_stamps else FileFacts(0, 0, 1)
        self._pace = pace
        self._rng = rng
        self._held: dict[int, list[Node]] = {}  # only if numbers are used again

    operation_lines: list[str] | None = None
    """A line for each operation, if this is a list."""

    def pause(self) -> None:
        self.now = min(self.now + 1 + self._rng.randrange(30), self._last)

    def step(self, operation: str, path: str) -> None:
        jump = self._pace(self.operations)
        self.operations += 1
        if jump:
            self.now = min(self.now + jump, self._last)
        self.trace.append(self.now)
        if self.operation_lines is not None:
            self.operation_lines.append(f"{self.operations:4} version {self.now:5} {operation} {path}")

    # ---- lookup

    def _folder(self, path: str) -> Folder | None:
        tree = self._versions.trees[self.now]
        folder = tree.get(path)
        return tree.get(_normal(path)) if folder is None else folder

    def node(self, path: str) -> Node | bool | None:
        """Return the file at a path; None for a directory, False if there is neither."""
        tree = self._versions.trees[self.now]
        parent, _, name = path.rpartition("/")
        folder = tree.get(parent)
        if folder is None or name not in folder:
            if path in tree:
                return None
            normal = _normal(path)
            return self.node(normal) if normal != path else False
        return folder[name]

    def content(self, node: Node) -> Content:
        """Return the bytes of a file now, as `VersionedFiles.content`: most are those of its last version."""
        versions, contents = self._contents[node]
        return contents[-1] if self.now >= versions[-1] else self._versions.content(node, self.now)

    def facts(self, node: Node) -> FileFacts:
        facts = self.content(node).facts
        if self._held:
            held = self._held.get(node.inode)
            if held and node not in held:
                return facts._replace(inode=node.inode + OTHER_INODE)
        return facts

    # ---- Files: reads

    def open_read(self, path: Any) -> Handle:
        full = os.fspath(path)
        if not full.startswith(ROOT):
            return self.side.open_read(_side(full))
        self.step("open", full)
        node = self.node(full)
        if node is False:
            raise FileVanishedError(f"no file {full}", file=full, errno=errno.ENOENT)
        if not isinstance(node, Node):
            raise StorageError(f"{full} is a directory", file=full, errno=errno.EISDIR)
        return self._handle_type(self, node, full)

    def listdir(self, path: Any) -> list[str]:
        full = os.fspath(path)
        if not full.startswith(ROOT):
            return self.side.listdir(_side(full))
        self.step("list", full)
        folder = self._folder(full)
        if folder is None:
            raise FileVanishedError(f"no directory {full}", file=full, errno=errno.ENOENT)
        known = self._sorted.get(id(folder))
        if known is None:
            known = self._sorted[id(folder)] = sorted(folder)
        return list(known)

    def stat(self, path: Any) -> FileFacts | None:
        full = os.fspath(path)
        if not full.startswith(ROOT):
            return self.side.stat(_side(full))
        self.step("stat", full)
        node = self.node(full)
        if node is False:
            return None
        return self.facts(node) if isinstance(node, Node) else self._directory

    def dir_version(self, path: Any) -> DirVersion | None:
        full = os.fspath(path)
        if not self.has_stamps or not full.startswith(ROOT):
            return None
        self.step("version of", full)
        folder = self._folder(full)
        return None if folder is None else self._version_of(folder)

    def _version_of(self, folder: Folder) -> DirVersion:
        """Return the version by the clock of the writer, whose calls change much in one millisecond."""
        changed_ms = self._versions.changed_ms[id(folder)]
        quiet_ms = self._versions.clock_ms[self.now] - changed_ms
        return DirVersion(changed_ms, quiet_ms > 0, quiet_ms)

    def stamp(self, path: Any) -> object:
        """Return the stamp of a file or a directory in one operation, as on a drive."""
        full = os.fspath(path)
        if not self.has_stamps or not full.startswith(ROOT):
            return super().stamp(path)
        self.step("stamp", full)
        node = self.node(full)
        if isinstance(node, Node):
            return self.facts(node)
        folder = None if node is False else self._folder(full)
        return None if folder is None else self._version_of(folder).stamp

    def is_dir(self, path: Any) -> bool:
        full = os.fspath(path)
        if not full.startswith(ROOT):
            return self.side.is_dir(_side(full))
        self.step("is_dir", full)
        return self._folder(full) is not None

    def free_bytes(self, path: Any) -> int:
        return 1 << 40

    def guard(self, root: Any) -> None:
        pass

    def offline(self, path: Any) -> LastwordError | None:
        return None

    # ---- Files: changes, outside of the root only

    def _outside(self, path: Any) -> str:
        full = os.fspath(path)
        if full.startswith(ROOT):
            raise ReadOnlyError(
                f"a reader changes {full}", remedy="none: this is a defect of the reader", file=full
            )
        return _side(full)

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        return self.side.open_append(self._outside(path), create=create, exclusive=exclusive)

    def mkdir(self, path: Any) -> None:
        self.side.mkdir(self._outside(path))

    def rmdir(self, path: Any) -> None:
        self.side.rmdir(self._outside(path))

    def rename(self, source: Any, target: Any) -> None:
        self.side.rename(self._outside(source), self._outside(target))

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        self.side.unlink(self._outside(path), missing_ok)

    def fsync_dir(self, path: Any) -> None:
        self.side.fsync_dir(self._outside(path))

    def truncate(self, path: Any, size: int) -> None:
        self.side.truncate(self._outside(path), size)

    def set_mtime(self, path: Any, ms: int) -> None:
        self.side.set_mtime(self._outside(path), ms)

    def lock(self, path: Any) -> FileLock:
        raise FileTakenError(f"a reader locks {path}", file=os.fspath(path))


def _side(path: str) -> str:
    """Return the path in the side files for a path outside of the history."""
    name = path.rstrip("/").rpartition("/")[2]
    return f"{ROOT}/{name}" if name else ROOT


class TravellingHandle(Handle):
    def __init__(self, files: TravellingFiles, node: Node, path: str) -> None:
        self._files = files
        self._node = node
        facts = files.facts(node)
        self._inode, self._least = facts.inode, facts.size
        self.path = path
        self._evicted = False

    def _content(self) -> Content:
        files = self._files
        files.step("read", self.path)
        if files.evicts:
            self._reopen()
        return files.content(self._node)

    def _reopen(self) -> None:
        """Reopen the file, as `OsHandle` does after its descriptor was closed to make room for others."""
        if not self._evicted and self._files._rng.random() < 0.3:
            self._evicted = True
            self._release()
        if self._evicted:
            node = self._files.node(self.path)
            if not isinstance(node, Node):
                raise FileVanishedError(f"{self.path} is gone", file=self.path, errno=errno.ENOENT)
            facts = self._files.facts(node)
            if facts.inode != self._inode or facts.size < self._least:
                raise FileVanishedError(f"{self.path} was replaced while it was open", file=self.path)
            self._node = node

    def _release(self) -> None:
        """Let the number of the file be used again."""

    def pread(self, n: int, position: int) -> bytes:
        return self._content().data[position : position + n]

    def pread_into(self, buffer: Any, position: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self._content().data[position : position + len(view)]
        view[: len(data)] = data
        return len(data)

    def stat(self) -> FileFacts:
        facts = self._content().facts
        return facts if facts.inode == self._inode else facts._replace(inode=self._inode)

    def append(self, data: Any) -> int:
        raise ReadOnlyError(
            f"a reader appends to {self.path}", remedy="none: this is a defect", file=self.path
        )

    def pwrite(self, data: Any, position: int) -> None:
        self.append(data)

    def truncate(self, size: int) -> None:
        self.append(b"")

    def fsync(self) -> None:
        self.append(b"")

    def close(self) -> None:
        self._release()


class ReusedHandle(TravellingHandle):
    """A handle of a history in which numbers of removed files are used again, unless they are open."""

    def __init__(self, files: TravellingFiles, node: Node, path: str) -> None:
        super().__init__(files, node, path)
        self._held: list[Node] | None = files._held.setdefault(node.inode, [])
        self._held.append(node)

    def _release(self) -> None:
        if self._held is not None:
            self._held.remove(self._node)
            self._held = None

    def __del__(self) -> None:
        self._release()
