"""`ForgetfulFiles`: the directories that a power cut may leave.

It works on a real directory and keeps a journal of every change with its bytes and inode. `image` replays the
journal up to a moment and leaves out changes that were not synced by then, as a policy says:

* *Data* of a file is safe once its handle was synced. Before, any part may be missing: all of it, a suffix,
  the inside of the last write (torn), or the bytes while the file already has its size (zeros; a write over
  existing bytes leaves those).
* *Names* are safe once their directory was synced: creations, renames, removals, directories made. Syncing a
  file does not save its name. A rename inside one directory happens or not, as a whole. A rename into another
  directory may leave the file under both names, but not under none. A change that is left out takes later
  changes of its names with it, because no filesystem reverses their order.
* A file is its inode: synced bytes stay with it through renames, and disappear only with its last name.

That is at least as cruel as ext4, xfs or btrfs, and more than LevelDB's test filesystem, which keeps
directory operations.

    files = ForgetfulFiles(root)
    work(files)
    for image in files.images(seeds=range(20)):       # every moment, several ways to forget, no image twice
        image.write(target)
        check(target)

`mark("acked 5")` adds a note to the journal; `image.marks` are the notes before its moment.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lastword.errors import FileVanishedError, LastwordError
from lastword.files import DirVersion, FileFacts, FileLock, Files, Handle, OsFiles

ROOT = 0
PAGE = 4096


class Op(NamedTuple):
    """An entry of the journal. `inode`: a number of the file or (for `fsync_dir`) of the directory."""

    kind: str  # write truncate mtime fsync | names fsync_dir | mark
    inode: int
    path: str
    position: int = 0  # offset of a write; size after a truncation; length of the journal that a sync covers
    data: bytes = b""
    names: tuple[tuple[int, str, int | None], ...] = ()  # (directory, name, inode or None), all set together
    part_of: int = -1  # this removal follows the entry with that number and cannot precede it


@dataclass
class Pending:
    """The changes that are not safe at a moment: numbers of journal entries, oldest first."""

    names: list[int]
    data: dict[int, list[int]]  # by inode

    @property
    def all(self) -> list[int]:
        return sorted([*self.names, *(number for numbers in self.data.values() for number in numbers)])


@dataclass
class Survivors:
    """The pending changes that survive under a policy.

    `cut`: a write that is torn after this many bytes. `zeros`: inodes whose unsynced writes have their sizes
    but no bytes. `holes`: (write, page) that is zero.
    """

    kept: set[int] = field(default_factory=set)
    cut: dict[int, int] = field(default_factory=dict)
    zeros: set[int] = field(default_factory=set)
    holes: set[tuple[int, int]] = field(default_factory=set)


Policy = Callable[[Pending, list[Op]], Survivors]


def keep_all(pending: Pending, journal: list[Op]) -> Survivors:
    """Keep everything: the process is killed, and the system continues and writes all changes."""
    return Survivors(set(pending.all))


def forget_all(pending: Pending, journal: list[Op]) -> Survivors:
    """Keep no pending change: a power cut at the worst moment."""
    return Survivors()


def names_only(pending: Pending, journal: list[Op]) -> Survivors:
    """Keep metadata, not data: files exist, but are short."""
    return Survivors(set(pending.names))


def data_only(pending: Pending, journal: list[Op]) -> Survivors:
    return Survivors({number for numbers in pending.data.values() for number in numbers})


def zero_filled(pending: Pending, journal: list[Op]) -> Survivors:
    """Keep names and sizes; the bytes are zeros."""
    return Survivors(set(pending.all), zeros=set(pending.data))


def leave_out(number: int) -> Policy:
    """Return a policy that keeps all changes except one, and those that depend on it."""

    def policy(pending: Pending, journal: list[Op]) -> Survivors:
        return Survivors({n for n in pending.all if n != number})

    return policy


def keep_only(number: int) -> Policy:
    """Return a policy that keeps only one change."""

    def policy(pending: Pending, journal: list[Op]) -> Survivors:
        return Survivors({number})

    return policy


def torn(number: int, size: int) -> Policy:
    """Return a policy that keeps all changes, but only the first bytes of this write."""

    def policy(pending: Pending, journal: list[Op]) -> Survivors:
        return Survivors(set(pending.all), cut={number: size})

    return policy


def seeded(seed: int) -> Policy:
    """Return a policy that keeps a random subset, with random damage to its writes."""

    def policy(pending: Pending, journal: list[Op]) -> Survivors:
        rng = random.Random(seed)
        survivors = Survivors()
        share = rng.choice((0.2, 0.5, 0.8, 0.95))
        survivors.kept.update(n for n in pending.names if rng.random() < share)
        for inode, numbers in pending.data.items():
            count = rng.randrange(len(numbers) + 1)
            survivors.kept.update(numbers[:count])
            if count < len(numbers) and journal[numbers[count]].kind == "write" and rng.random() < 0.5:
                survivors.kept.add(numbers[count])
                survivors.cut[numbers[count]] = rng.randrange(len(journal[numbers[count]].data) + 1)
            if rng.random() < 0.1:
                survivors.zeros.add(inode)
            for number in numbers[:count]:
                pages = range(0, len(journal[number].data), PAGE)
                survivors.holes.update((number, page) for page in pages if rng.random() < 0.05)
        return survivors

    return policy


@dataclass
class Image:
    """A directory tree after a crash: contents by relative path, None for a directory."""

    label: str
    upto: int
    tree: dict[str, bytes | None]
    mtimes: dict[str, int]
    marks: list[str]

    @property
    def identity(self) -> int:
        """Return a number that is the same for equal trees."""
        return hash(frozenset(self.tree.items()))

    def write(self, target: str | os.PathLike[str]) -> str:
        """Make the tree in `target`, in place of what is there; return its path."""
        target = os.fspath(target)
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        for path, content in sorted(self.tree.items()):
            full = os.path.join(target, path)
            if content is None:
                os.mkdir(full)
            else:
                with open(full, "wb") as file:
                    file.write(content)
        for path, ms in self.mtimes.items():
            if path in self.tree:
                os.utime(os.path.join(target, path), ns=(ms * 1_000_000, ms * 1_000_000))
        return target


@dataclass
class _Moment:
    """The part that all images of a moment share. The crashes of a moment differ in its pending changes.

    `contents`: bytes of the files, without their pending writes. `names`: all changes of names, because one
    that is safe may follow a pending one of the same name.
    """

    pending: Pending
    names: list[tuple[int, Op]]
    contents: dict[int, bytes]
    mtimes: dict[int, int]
    marks: list[str]
    folders: set[int]


class ForgetfulFiles(Files):
    """`Files` below `root`. Existing files are safe. Changes made past this object are not tracked."""

    def __init__(self, root: str | os.PathLike[str], inner: Files | None = None) -> None:
        self.root = os.path.abspath(root)
        self.inner = inner if inner is not None else OsFiles()
        self.journal: list[Op] = []
        self._mutex = threading.RLock()
        self._start: dict[int, dict[str, int] | bytes] = {ROOT: {}}  # directories and contents at the start
        self._start_mtimes: dict[int, int] = {}
        self._adopt_tree(self.root, ROOT)
        self._now = {n: dict(node) for n, node in self._start.items() if isinstance(node, dict)}
        self._next = max(self._start) + 1
        self._last_moment: tuple[int, _Moment] | None = None

    # ---- the current tree: directories by number, names in them

    def _adopt_tree(self, path: str, number: int) -> None:
        directory = self._start[number]
        assert isinstance(directory, dict)
        for name in self.inner.listdir(path) if self.inner.is_dir(path) else ():
            child = len(self._start)
            directory[name] = child
            entry = os.path.join(path, name)
            if self.inner.is_dir(entry) and not os.path.islink(entry):
                self._start[child] = {}
                self._adopt_tree(entry, child)
            else:
                facts = self.inner.stat(entry)
                self._start[child] = self.inner.read_bytes(entry)
                self._start_mtimes[child] = facts.mtime_ms if facts is not None else 0

    def _parts(self, path: Any) -> list[str]:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        if relative == ".":
            return []
        parts = relative.split(os.sep)
        if parts[0] == "..":
            raise AssertionError(f"{path} is outside {self.root}")
        return parts

    def _find(self, path: Any) -> int | None:
        number: int | None = ROOT
        for part in self._parts(path):
            number = self._now.get(number, {}).get(part) if number is not None else None
        return number

    def _place(self, path: Any) -> tuple[int, str]:
        """Return (directory, name) of a path whose parent exists."""
        *above, name = self._parts(path)
        parent = self._find(os.path.join(self.root, *above))
        if parent is None:
            raise AssertionError(f"{path}: its directory was not made through this object")
        return parent, name

    def _new(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _log(self, op: Op) -> int:
        self.journal.append(op)
        for directory, name, inode in op.names:
            if inode is None:
                self._now[directory].pop(name, None)
            else:
                self._now[directory][name] = inode
        return len(self.journal) - 1

    def _relative(self, path: Any) -> str:
        return "/".join(self._parts(path)) or "."

    def mark(self, note: str) -> None:
        with self._mutex:
            self._log(Op("mark", -1, note))

    # ---- Files: reads

    def open_read(self, path: Any) -> Handle:
        return self.inner.open_read(path)

    def listdir(self, path: Any) -> list[str]:
        return self.inner.listdir(path)

    def dir_version(self, path: Any) -> DirVersion | None:
        return self.inner.dir_version(path)

    def stat(self, path: Any) -> FileFacts | None:
        return self.inner.stat(path)

    def is_dir(self, path: Any) -> bool:
        return self.inner.is_dir(path)

    def free_bytes(self, path: Any) -> int:
        return self.inner.free_bytes(path)

    def guard(self, root: Any) -> None:
        self.inner.guard(root)

    def offline(self, path: Any) -> LastwordError | None:
        return self.inner.offline(path)

    # ---- Files: changes

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        with self._mutex:
            handle = self.inner.open_append(path, create=create, exclusive=exclusive)
            return ForgetfulHandle(self, handle, self._known(path))

    def lock(self, path: Any) -> FileLock:
        with self._mutex:
            lock = self.inner.lock(path)
            self._known(path)
            return lock

    def _known(self, path: Any) -> int:
        """Return the inode of an existing file, which this call may have made."""
        inode = self._find(path)
        if inode is None:
            inode = self._new()
            self._log(
                Op("names", inode, f"create {self._relative(path)}", names=((*self._place(path), inode),))
            )
        return inode

    def mkdir(self, path: Any) -> None:
        with self._mutex:
            self.inner.mkdir(path)
            inode = self._new()
            self._now[inode] = {}
            self._log(
                Op("names", inode, f"mkdir {self._relative(path)}", names=((*self._place(path), inode),))
            )

    def rmdir(self, path: Any) -> None:
        self._remove(path, "rmdir", lambda: self.inner.rmdir(path))

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        if missing_ok and self.inner.stat(path) is None:
            return
        self._remove(path, "unlink", lambda: self.inner.unlink(path))

    def _remove(self, path: Any, call: str, action: Callable[[], None]) -> None:
        with self._mutex:
            inode = self._find(path)
            action()
            assert inode is not None
            self._log(
                Op("names", inode, f"{call} {self._relative(path)}", names=((*self._place(path), None),))
            )

    def rename(self, source: Any, target: Any) -> None:
        with self._mutex:
            inode = self._find(source)
            self.inner.rename(source, target)
            assert inode is not None
            old, new = self._place(source), self._place(target)
            text = f"rename {self._relative(source)} {self._relative(target)}"
            if old[0] == new[0]:
                self._log(Op("names", inode, text, names=((*old, None), (*new, inode))))
            else:
                number = self._log(Op("names", inode, text, names=((*new, inode),)))
                self._log(Op("names", inode, text, names=((*old, None),), part_of=number))

    def fsync_dir(self, path: Any) -> None:
        with self._mutex:
            covers = len(self.journal)
        self.inner.fsync_dir(path)
        with self._mutex:
            inode = self._find(path)
            if inode is None:  # an inner storage that does not sync has not met it
                raise FileVanishedError(f"{path} is gone", file=os.fspath(path))
            self._log(Op("fsync_dir", inode, self._relative(path), covers))

    def truncate(self, path: Any, size: int) -> None:
        with self.open_append(path) as handle:
            handle.truncate(size)

    def set_mtime(self, path: Any, ms: int) -> None:
        with self._mutex:
            self.inner.set_mtime(path, ms)
            inode = self._find(path)
            assert inode is not None
            self._log(Op("mtime", inode, self._relative(path), ms))

    # ---- crashes

    def pending(self, upto: int) -> Pending:
        """Return the changes that are not safe after the first `upto` entries of the journal."""
        data_safe: dict[int, int] = {}
        names_safe: dict[int, int] = {}
        for op in self.journal[:upto]:
            if op.kind == "fsync":
                data_safe[op.inode] = op.position
            elif op.kind == "fsync_dir":
                names_safe[op.inode] = op.position
        pending = Pending([], {})
        whole: set[int] = set()  # renames between directories whose removing half is safe
        for number, op in enumerate(self.journal[:upto]):
            if op.kind in ("write", "truncate") and number >= data_safe.get(op.inode, 0):
                pending.data.setdefault(op.inode, []).append(number)
            elif op.kind == "names":
                if any(number >= names_safe.get(directory, 0) for directory, _, _ in op.names):
                    pending.names.append(number)
                elif op.part_of >= 0:
                    whole.add(op.part_of)
        pending.names = [number for number in pending.names if number not in whole]
        return pending

    def _moment(self, upto: int) -> _Moment:
        if self._last_moment is not None and self._last_moment[0] == upto:
            return self._last_moment[1]
        pending = self.pending(upto)
        unsafe = set(pending.all)
        contents = {n: bytearray(node) for n, node in self._start.items() if isinstance(node, bytes)}
        folders = {n for n, node in self._start.items() if isinstance(node, dict)}
        moment = _Moment(pending, [], {}, dict(self._start_mtimes), [], folders)
        for number, op in enumerate(self.journal[:upto]):
            if op.kind == "mark":
                moment.marks.append(op.path)
            elif op.kind == "mtime":
                moment.mtimes[op.inode] = op.position
            elif op.kind == "names":
                moment.names.append((number, op))
                if op.path.startswith("mkdir "):
                    folders.add(op.inode)
            elif op.kind in ("write", "truncate") and number not in unsafe:
                _apply(contents.setdefault(op.inode, bytearray()), op, number, Survivors(), unsafe=False)
        moment.contents = {inode: bytes(content) for inode, content in contents.items()}
        self._last_moment = upto, moment
        return moment

    def crash(self, upto: int | None = None, drop: Policy = forget_all, label: str = "") -> Image:
        """Return the tree after a crash behind the first `upto` entries of the journal (default: all)."""
        upto = len(self.journal) if upto is None else upto
        moment = self._moment(upto)
        pending = moment.pending
        survivors = drop(pending, self.journal)
        lost = {number for number in pending.all if number not in survivors.kept}
        self._drag_along(pending, lost)
        directories = {n: dict(node) for n, node in self._start.items() if isinstance(node, dict)}
        for number, op in moment.names:
            if number not in lost:
                for directory, name, inode in op.names:
                    if inode is None:
                        directories.setdefault(directory, {}).pop(name, None)
                    else:
                        directories.setdefault(directory, {})[name] = inode
        contents = dict(moment.contents)
        for inode, numbers in pending.data.items():
            content = bytearray(contents.get(inode, b""))
            for number in numbers:
                if number not in lost:
                    _apply(content, self.journal[number], number, survivors, unsafe=True)
            contents[inode] = bytes(content)
        image = Image(label or getattr(drop, "__name__", "policy"), upto, {}, {}, list(moment.marks))
        self._collect(image, ROOT, "", directories, contents, moment)
        return image

    def _drag_along(self, pending: Pending, lost: set[int]) -> None:
        """Add to `lost` the changes that cannot survive without another lost change.

        These are later changes of the same names, the second half of a rename, and later writes to the same
        file (a file grows in order; the policies decide about holes).
        """
        names: set[tuple[int, str]] = set()
        for number in pending.names:
            op = self.journal[number]
            touched = {(directory, name) for directory, name, _ in op.names}
            if number in lost or touched & names or op.part_of in lost:
                lost.add(number)
                names |= touched
        for numbers in pending.data.values():
            first = next((i for i, number in enumerate(numbers) if number in lost), len(numbers))
            lost.update(numbers[first:])

    def _collect(
        self,
        image: Image,
        number: int,
        above: str,
        directories: dict[int, dict[str, int]],
        contents: dict[int, bytes],
        moment: _Moment,
    ) -> None:
        for name, inode in directories.get(number, {}).items():
            path = f"{above}{name}"
            if inode in moment.folders:
                image.tree[path] = None
                self._collect(image, inode, path + "/", directories, contents, moment)
            else:
                image.tree[path] = contents.get(inode, b"")
                if inode in moment.mtimes:
                    image.mtimes[path] = moment.mtimes[inode]

    def image(
        self, target_dir: str | os.PathLike[str], upto: int | None = None, drop: Policy = forget_all
    ) -> Image:
        """Make the tree after such a crash in `target_dir`."""
        image = self.crash(upto, drop)
        image.write(target_dir)
        return image

    def policies(self, upto: int, seeds: Iterable[int] = ()) -> Iterator[tuple[str, Policy]]:
        """Yield the policies for this moment.

        They keep all, nothing, names only, data only, or zeros; leave out each entry alone; keep each entry
        alone; tear each last write; or keep a random subset.
        """
        yield "keep_all", keep_all
        pending = self._moment(upto).pending
        everything = pending.all
        if not everything:
            return  # all is safe: every policy gives the same image
        yield "forget_all", forget_all
        yield "names_only", names_only
        yield "data_only", data_only
        yield "zero_filled", zero_filled
        for number in everything:
            yield f"leave_out {number}: {self.journal[number].path}", leave_out(number)
            yield f"keep_only {number}: {self.journal[number].path}", keep_only(number)
        for numbers in pending.data.values():
            last = self.journal[numbers[-1]]
            if last.kind == "write" and len(last.data) > 1:
                for size in {1, len(last.data) // 2, len(last.data) - 1}:
                    yield f"torn {numbers[-1]} after {size}: {last.path}", torn(numbers[-1], size)
        for seed in seeds:
            yield f"seed {seed}", seeded(seed)

    def images(
        self, moments: Iterable[int] | None = None, seeds: Iterable[int] = (), start: int = 0
    ) -> Iterator[Image]:
        """Yield every image of every moment (by default after each entry from `start` on).

        Each distinct (tree, marks) is yielded once.
        """
        seen = set()
        seeds = list(seeds)
        for upto in range(start, len(self.journal) + 1) if moments is None else moments:
            for label, policy in self.policies(upto, seeds):
                image = self.crash(upto, policy, f"after {upto} of {len(self.journal)}, {label}")
                known = (image.identity, len(image.marks))
                if known not in seen:
                    seen.add(known)
                    yield image

    def kills(self, moments: Iterable[int]) -> Iterator[Image]:
        """Yield what a kill leaves at each of these moments: everything that the process passed on."""
        for upto in moments:
            yield self.crash(upto, keep_all, f"kill after {upto} of {len(self.journal)}")

    def story(self) -> str:
        """Return the journal as text, for a failing test."""
        lines = []
        for number, op in enumerate(self.journal):
            sizes = f"{op.position or ''} {len(op.data) or ''}"
            lines.append(f"{number:4} {op.kind:9} inode {op.inode:3} {op.path} {sizes}".rstrip())
        return "\n".join(lines)


def _apply(content: bytearray, op: Op, number: int, survivors: Survivors, unsafe: bool) -> None:
    if op.kind == "truncate":
        if op.position < len(content):
            del content[op.position :]
        else:
            content.extend(bytes(op.position - len(content)))
        return
    data = bytearray(op.data)
    if unsafe:
        # A file that grew has zeros where no bytes were written; an overwritten part has its old bytes.
        old = content[op.position : op.position + len(data)].ljust(len(data), b"\0")
        if op.inode in survivors.zeros:
            data[:] = old
        for write, page in survivors.holes:
            if write == number:
                data[page : page + PAGE] = old[page : page + PAGE]
        if number in survivors.cut:
            del data[survivors.cut[number] :]
    if op.position > len(content):
        content.extend(bytes(op.position - len(content)))
    content[op.position : op.position + len(data)] = data


class ForgetfulHandle(Handle):
    growth_slows_sync = True

    def __init__(self, files: ForgetfulFiles, inner: Handle, inode: int) -> None:
        self._files = files
        self._inner = inner
        self._inode = inode
        self.path = inner.path

    def pread(self, n: int, position: int) -> bytes:
        return self._inner.pread(n, position)

    def pread_into(self, buffer: Any, position: int) -> int:
        return self._inner.pread_into(buffer, position)

    def append(self, data: Any) -> int:
        with self._files._mutex:
            position = self._inner.append(data)
            self._wrote(data, position)
        return position

    def pwrite(self, data: Any, position: int) -> None:
        with self._files._mutex:
            self._inner.pwrite(data, position)
            self._wrote(data, position)

    def _wrote(self, data: Any, position: int) -> None:
        raw = bytes(memoryview(data).cast("B"))
        self._files._log(Op("write", self._inode, self._name, position, raw))

    def truncate(self, size: int) -> None:
        with self._files._mutex:
            self._inner.truncate(size)
            self._files._log(Op("truncate", self._inode, self._name, size))

    def fsync(self) -> None:
        with self._files._mutex:
            covers = len(self._files.journal)  # another thread may write bytes that the sync does not cover
        self._inner.fsync()
        with self._files._mutex:
            self._files._log(Op("fsync", self._inode, self._name, covers))

    @property
    def _name(self) -> str:
        return os.path.relpath(self.path, self._files.root)

    def stat(self) -> FileFacts:
        return self._inner.stat()

    def close(self) -> None:
        self._inner.close()
