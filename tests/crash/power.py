"""Generate every image that a power cut can leave of a run on `ForgetfulFiles`, fast.

The images equal those of `ForgetfulFiles.crash` (a test compares them); here the journal is walked once. The
safe part of a moment is kept unchanged; the unsafe part is applied on top as far as a policy lets it survive.
Contents that no policy changes are the same `bytes` object in all images, so comparing two images only
compares existing hashes.

The policies at each moment: lose all, nothing, only names or only data; lose or keep each entry alone; tear
each write at several places, zero it, or drop a page of it; zero the unsynced bytes of each file; and seeded
subsets of all these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.fakes.forgetful import (
    PAGE,
    ROOT,
    ForgetfulFiles,
    Op,
    Pending,
    Policy,
    Survivors,
    _apply,
    data_only,
    forget_all,
    keep_all,
    keep_only,
    leave_out,
    names_only,
    seeded,
    torn,
    zero_filled,
)

KILLS = frozenset({"keep_all", "torn in flight"})
"""Policies whose images a killed process leaves too: records acknowledged at `os` must be in them."""


class PowerCut(NamedTuple):
    """A moment and a policy for the loss of data.

    `upto` is the number of journal entries that happened, `policy` is the name of the policy. `killed`: a
    SIGKILL may leave the same image.
    """

    upto: int
    policy: str
    killed: bool
    tree: dict[str, bytes | None]
    mtimes: dict[str, int]

    @property
    def identity(self) -> int:
        return hash(frozenset(self.tree.items()))


def zeroed(number: int, data: bytes) -> Policy:
    """Return the policy that keeps everything, with zeros for the bytes of one write."""
    holes = {(number, page) for page in range(0, len(data), PAGE)}
    return lambda pending, journal: Survivors(set(pending.all), holes=holes)


def missing_page(number: int, page: int) -> Policy:
    return lambda pending, journal: Survivors(set(pending.all), holes={(number, page)})


def zeros_in(inode: int) -> Policy:
    """Return the policy that keeps everything, with zeros for the unsynced bytes of one file."""
    return lambda pending, journal: Survivors(set(pending.all), zeros={inode})


def policies(
    pending: Pending, journal: list[Op], upto: int, seeds: Iterable[int]
) -> Iterator[tuple[str, Policy]]:
    yield "keep_all", keep_all
    everything = pending.all
    if not everything:
        return
    yield "forget_all", forget_all
    yield "names_only", names_only
    yield "data_only", data_only
    yield "zero_filled", zero_filled
    for number in everything:
        yield f"leave_out {number}", leave_out(number)
        yield f"keep_only {number}", keep_only(number)
    for inode, numbers in pending.data.items():
        yield f"zeros in {inode}", zeros_in(inode)
        for number in numbers:
            data = journal[number].data
            if journal[number].kind != "write" or len(data) < 2:
                continue
            for size in sorted({1, 12, len(data) // 2, len(data) - 1} & set(range(1, len(data)))):
                # A kill can leave the call that had just begun half done.
                flying = number == upto - 1
                yield ("torn in flight" if flying else f"torn {number} at {size}"), torn(number, size)
            yield f"zeroed {number}", zeroed(number, data)
            if len(data) > PAGE:
                for page in range(0, len(data), PAGE):
                    yield f"page {page} of {number}", missing_page(number, page)
    for seed in seeds:
        yield f"seed {seed}", seeded(seed * 1_000_003 + upto)


class PowerCuts:
    """The images of a journal. It is walked once; `images` yields those of each moment from `start` on.

    `doomed`: numbers of entries that no sync makes safe (their sync failed; the kernel reported it once).
    """

    def __init__(self, files: ForgetfulFiles, doomed: Iterable[int] = ()) -> None:
        self.files = files
        self.journal = list(files.journal)
        self._doomed = frozenset(doomed)
        self._folders: dict[int, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        for number, node in files._start.items():
            if isinstance(node, dict):
                self._folders[number] = dict(node)
            else:
                self._contents[number] = node
        self._mtimes = dict(files._start_mtimes)
        self._names: list[int] = []
        self._data: dict[int, list[int]] = {}
        self._made: set[int] = set(self._folders)
        self._upto = 0

    def images(
        self, moments: Iterable[int] | None = None, seeds: Iterable[int] = (), start: int = 0
    ) -> Iterator[PowerCut]:
        """Yield images in the order of their moments; no tree occurs twice at one moment."""
        seeds = list(seeds)
        for upto in range(start, len(self.journal) + 1) if moments is None else moments:
            while self._upto < upto:
                self._advance()
            pending = Pending(list(self._names), {i: list(n) for i, n in self._data.items() if n})
            seen: set[int] = set()
            for name, policy in policies(pending, self.journal, upto, seeds):
                image = self._image(upto, name, policy, pending)
                if image.identity not in seen:
                    seen.add(image.identity)
                    yield image

    # ---- what is safe

    def _advance(self) -> None:
        number = self._upto
        op = self.journal[number]
        if op.kind in ("write", "truncate"):
            self._data.setdefault(op.inode, []).append(number)
        elif op.kind == "names":
            self._names.append(number)
            if op.path.startswith("mkdir "):
                self._made.add(op.inode)
        elif op.kind == "mtime":
            self._mtimes[op.inode] = op.position
        elif op.kind == "fsync":
            pending = self._data.get(op.inode, [])
            safe = [n for n in pending if n < op.position]
            if any(n in self._doomed for n in safe):
                safe = safe[: next(i for i, n in enumerate(safe) if n in self._doomed)]
            if safe:
                self._contents[op.inode] = self._content(op.inode, safe, Survivors(), unsafe=False)
                self._data[op.inode] = pending[len(safe) :]
        elif op.kind == "fsync_dir":
            safe = [n for n in self._names if n < op.position and self.journal[n].names[0][0] == op.inode]
            # If the removing half of a rename between directories is safe, so is the other half.
            safe += [self.journal[n].part_of for n in safe if self.journal[n].part_of in self._names]
            for n in sorted(set(safe)):
                self._set_names(self._folders, self.journal[n])
                self._names.remove(n)
        self._upto += 1

    @staticmethod
    def _set_names(folders: dict[int, dict[str, int]], op: Op) -> None:
        for directory, name, inode in op.names:
            if inode is None:
                folders.setdefault(directory, {}).pop(name, None)
            else:
                folders.setdefault(directory, {})[name] = inode

    def _content(self, inode: int, numbers: Iterable[int], survivors: Survivors, *, unsafe: bool) -> bytes:
        content = bytearray(self._contents.get(inode, b""))
        for number in numbers:
            _apply(content, self.journal[number], number, survivors, unsafe)
        return bytes(content)

    # ---- one image

    def _image(self, upto: int, name: str, policy: Policy, pending: Pending) -> PowerCut:
        survivors = policy(pending, self.journal)
        lost = {number for number in pending.all if number not in survivors.kept}
        if lost:
            self.files._drag_along(pending, lost)
        folders: Mapping[int, dict[str, int]] = self._folders
        kept = [number for number in pending.names if number not in lost]
        if kept:
            touched = {directory for number in kept for directory, _, _ in self.journal[number].names}
            changed = {directory: dict(self._folders.get(directory, {})) for directory in touched}
            for number in kept:
                self._set_names(changed, self.journal[number])
            folders = {**self._folders, **changed}
        contents = {
            inode: self._content(inode, [n for n in numbers if n not in lost], survivors, unsafe=True)
            for inode, numbers in pending.data.items()
        }
        tree: dict[str, bytes | None] = {}
        mtimes: dict[str, int] = {}
        self._collect(ROOT, "", folders, contents, tree, mtimes)
        return PowerCut(upto, name, name in KILLS, tree, mtimes)

    def _collect(
        self,
        number: int,
        above: str,
        folders: Mapping[int, dict[str, int]],
        contents: dict[int, bytes],
        tree: dict[str, bytes | None],
        mtimes: dict[str, int],
    ) -> None:
        for name, inode in folders.get(number, {}).items():
            path = above + name
            if inode in self._made:
                tree[path] = None
                self._collect(inode, path + "/", folders, contents, tree, mtimes)
            else:
                changed = contents.get(inode)
                tree[path] = self._contents.get(inode, b"") if changed is None else changed
                if inode in self._mtimes:
                    mtimes[path] = self._mtimes[inode]
