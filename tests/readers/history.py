"""Record every version of a directory's files, and the oracle at each version.

Readers without a lock do not influence a writer. So a writer runs once, on `VersionedFiles`, which keeps the
whole tree after every changing file operation; any number of readers then travel along the versions.

The oracle (`PartitionHistory`) is written by the calls of the writer, not by reading the files. Each call
records the version before it and after it, and the resulting log start, stable offset and log end. A reader
at a version inside a call may find the state before the call, the state after it, or a state between.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import lastword
from lastword.api.cleaning import expire_old_values
from lastword.api.logs import LogDir
from lastword.api.record import ABSENT
from lastword.cleaner.policy.plan import Plan
from lastword.clock import ManualClock
from lastword.errors import ConflictError
from lastword.files import FileFacts, Handle
from lastword.keys import index, manifest
from lastword.partition import scan
from lastword.partition.log import PartitionLog
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from tests.crash.memory import ROOT, MemoryFiles, MemoryHandle, Node
from tests.support.cleaning import by_hash
from tests.transactions import end_transaction

NOW = 1_700_000_000_000
HOUR = 3_600_000
TOPIC = "users"
SALT = b"0123456789abcdef"
TTL = "lastword.ttl.ms"

Folder = dict[str, Node | None]
Tree = dict[str, Folder]


# ---------------------------------------------------------------- files that keep every version


class Content(NamedTuple):
    data: bytes
    facts: FileFacts


class VersionedFiles(MemoryFiles):
    """A directory in memory that keeps its tree after each changing operation.

    Attributes:
        trees: by version, the folders and their nodes; versions share a folder that did not change.
        changed_ms: by identity of a folder in `trees`, the time at which its names changed.
        contents: by node, the versions at which its bytes changed, and the new bytes.
        reuse: a new file gets the inode number of a removed file, as in ext4 and xfs.
    """

    def __init__(self, clock: ManualClock, *, reuse: bool = False) -> None:
        super().__init__()
        self.clock = clock
        self.reuse = reuse
        self.trees: list[Tree] = [{ROOT: {}}]
        self.changed_ms: dict[int, int] = {id(self.trees[0][ROOT]): clock.now_ms()}
        self.clock_ms: list[int] = [clock.now_ms()]
        self.labels: list[str] = ["nothing"]
        self.contents: dict[Node, tuple[list[int], list[Content]]] = {}
        self._free: list[int] = []
        self._open: dict[Node, int] = {}

    @property
    def version(self) -> int:
        return len(self.trees) - 1

    def _node(self, data: bytes | bytearray = b"", mtime_ms: int = 0) -> Node:
        node = super()._node(data, mtime_ms)
        if self.reuse and self._free:
            self._free.sort()
            node.inode = self._free.pop(0)
        return node

    def _names_changed(self, label: str, *folders: str) -> None:
        tree = dict(self.trees[-1])
        for folder in folders:
            if folder in self._folders:
                tree[folder] = changed = dict(self._folders[folder])
                self.changed_ms[id(changed)] = self.clock.now_ms()
            else:
                tree.pop(folder, None)
        self._push(tree, label)

    def _bytes_changed(self, node: Node, label: str) -> None:
        node.mtime_ms = self.clock.now_ms()
        self._push(self.trees[-1], label)
        self._keep(node)

    def _push(self, tree: Tree, label: str) -> None:
        self.trees.append(tree)
        self.clock_ms.append(self.clock.now_ms())
        self.labels.append(label)

    def _keep(self, node: Node) -> None:
        versions, contents = self.contents.setdefault(node, ([], []))
        versions.append(self.version)
        data = bytes(node.data)
        contents.append(Content(data, FileFacts(len(data), node.mtime_ms, node.inode)))

    def content(self, node: Node, version: int) -> Content:
        """Return the bytes of a file at a version; for a version before its creation, its first bytes."""
        versions, contents = self.contents[node]
        if version >= versions[-1]:
            return contents[-1]
        return contents[max(bisect_right(versions, version) - 1, 0)]

    def between_calls(self) -> None:
        """Do nothing; the writer calls this after each of its calls, and subclasses override it."""

    def _gone(self, node: Node | None) -> None:
        if self.reuse and isinstance(node, Node) and not self._open.get(node):
            self._free.append(node.inode)

    # ---- changing

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        entries, name, full = self._split(path)
        known = name in entries
        super().open_append(path, create=create, exclusive=exclusive).close()
        node = entries[name]
        assert node is not None
        if not known:
            node.mtime_ms = self.clock.now_ms()
            self._names_changed(f"create {full}", full.rpartition("/")[0])
            self._keep(node)
        return VersionedHandle(self, node, full)

    def open_read(self, path: Any) -> Handle:
        return VersionedHandle(self, self._file(path), str(path))

    def mkdir(self, path: Any) -> None:
        super().mkdir(path)
        full = str(path)
        self._names_changed(f"mkdir {full}", full.rpartition("/")[0], full)

    def rmdir(self, path: Any) -> None:
        super().rmdir(path)
        full = str(path)
        self._names_changed(f"rmdir {full}", full.rpartition("/")[0], full)

    def rename(self, source: Any, target: Any) -> None:
        old, new = str(source), str(target)
        moved = [folder for folder in self._folders if folder == old or folder.startswith(old + "/")]
        replaced = self._entry(target)
        super().rename(source, target)
        folders = {old.rpartition("/")[0], new.rpartition("/")[0], *moved}
        folders |= {new + folder[len(old) :] for folder in moved}
        self._names_changed(f"rename {old} {new.rpartition('/')[2]}", *folders)
        self._gone(replaced if isinstance(replaced, Node) else None)

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        node = self._entry(path)
        super().unlink(path, missing_ok)
        if node is not False:
            full = str(path)
            self._names_changed(f"unlink {full}", full.rpartition("/")[0])
            self._gone(node if isinstance(node, Node) else None)

    def set_mtime(self, path: Any, ms: int) -> None:
        super().set_mtime(path, ms)
        node = self._file(path)
        self._push(self.trees[-1], f"mtime {path}")
        self._keep(node)

    def lock(self, path: Any) -> Any:
        known = self.exists(path)
        lock = super().lock(path)
        if not known:
            full = str(path)
            self._names_changed(f"create {full}", full.rpartition("/")[0])
            self._keep(self._file(path))
        return lock


class VersionedHandle(MemoryHandle):
    _files: VersionedFiles
    growth_slows_sync = True

    def __init__(self, files: VersionedFiles, node: Node, path: str) -> None:
        super().__init__(files, node, path)
        files._open[node] = files._open.get(node, 0) + 1

    def append(self, data: Any) -> int:
        position = super().append(data)
        self._files._bytes_changed(self._node, f"append {self.path}")
        return position

    def pwrite(self, data: Any, position: int) -> None:
        super().pwrite(data, position)
        self._files._bytes_changed(self._node, f"pwrite {self.path}")

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._files._bytes_changed(self._node, f"truncate {self.path}")

    def close(self) -> None:
        if self._open:
            self._files._open[self._node] -= 1
        super().close()


# ---------------------------------------------------------------- the oracle


class Written(NamedTuple):
    """A record as the writer appended it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    producer_id: int = -1

    def expiry(self, topic_ttl_ms: int) -> float:
        """Return the time in ms from which on a state hides the value; infinity: it never does."""
        own = [value for name, value in self.headers if name == TTL]
        ttl_ms = int(own[-1] or b"-1") if own else topic_ttl_ms
        return math.inf if topic_ttl_ms < 0 or ttl_ms < 0 else self.timestamp + ttl_ms


class Ends(NamedTuple):
    """The offsets after a call. The log is a prefix of the `Lineage` with the number `lineage`."""

    log_start: int
    stable: int
    log_end: int
    lineage: int
    undecided: frozenset[int] = frozenset()  # offsets of the records of open transactions


class Removal(NamedTuple):
    """Records that one swap removed; the swap began after version `begin` and was complete at `end`."""

    begin: int
    end: int
    lineage: int
    offsets: frozenset[int]


_BEGIN, _END = attrgetter("begin"), attrgetter("end")


@dataclass
class Lineage:
    """The records, by offset, of a log that only grows. A truncation or a new topic begins a new lineage."""

    records: dict[int, Written] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    _newest: dict[frozenset[int], list[dict[bytes, int]]] = field(default_factory=dict)
    _known: tuple[int, int] = (-1, -1)

    def newest(self, end: int, undecided: frozenset[int] = frozenset()) -> dict[bytes, int]:
        """Return the offset of the newest committed record per key, with tombstones, as of an offset."""
        known = len(self.records), len(self.aborted)
        if known != self._known:
            self._newest, self._known = {}, known
        if undecided not in self._newest:
            self._newest[undecided] = list(self._states(undecided))
        newest = self._newest[undecided]
        return newest[min(end, len(newest) - 1)]

    def undecided(self, opened: dict[int, int]) -> frozenset[int]:
        """Return the offsets of open transactions, given by producer id and first offset."""
        return frozenset(
            offset
            for offset, record in self.records.items()
            if offset >= opened.get(record.producer_id, offset + 1)
        )

    def _states(self, undecided: frozenset[int]) -> Iterator[dict[bytes, int]]:
        state: dict[bytes, int] = {}
        for offset in range(max(self.records, default=-1) + 2):
            yield state
            record = self.records.get(offset)
            if record is None or record.key is None or offset in undecided:
                continue
            if offset not in self.aborted:
                state = state | {record.key: offset}


@dataclass
class PartitionHistory:
    """The states of one partition, by version.

    `begins` and `ends_at` are the versions before and after each call; `ends` is the state after it.
    """

    name: str
    lineages: list[Lineage] = field(default_factory=lambda: [Lineage()])
    topics: list[int] = field(default_factory=lambda: [0])  # first lineage of each topic of this name
    begins: list[int] = field(default_factory=lambda: [0])
    ends_at: list[int] = field(default_factory=lambda: [0])
    ends: list[Ends] = field(default_factory=lambda: [Ends(0, 0, 0, 0)])
    removals: list[Removal] = field(default_factory=list)
    first_dirty: list[int] = field(default_factory=lambda: [0])
    gone: list[tuple[int, int]] = field(default_factory=list)  # first and last version without the partition
    _removed: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    def note(self, begin: int, end: int, ends: Ends, first_dirty: int) -> None:
        if (end, ends, first_dirty) != (self.ends_at[-1], self.ends[-1], self.first_dirty[-1]):
            self.begins.append(begin)
            self.ends_at.append(end)
            self.ends.append(ends)
            self.first_dirty.append(first_dirty)

    def settled(self, version: int) -> int:
        """Return the number of the last call that was complete at a version."""
        return bisect_right(self.ends_at, version) - 1

    def begun(self, version: int) -> int:
        """Return the number of the last call that had begun at a version."""
        return max(bisect_left(self.begins, version) - 1, self.settled(version))

    def calls(self, first: int, last: int) -> Sequence[Ends]:
        """Return the states that may hold between two versions."""
        return self.ends[self.settled(first) : self.begun(last) + 1]

    def removed_before(self, version: int, lineage: int) -> frozenset[int]:
        """Return offsets whose removal was complete at a version."""
        return self._removed_by(bisect_right(self.removals, version, key=_END), lineage)

    def removed_up_to(self, version: int, lineage: int) -> frozenset[int]:
        """Return offsets whose removal had begun at a version."""
        return self._removed_by(bisect_left(self.removals, version, key=_BEGIN), lineage)

    def _removed_by(self, count: int, lineage: int) -> frozenset[int]:
        """Return the offsets that the first `count` removals removed; their versions ascend."""
        known = self._removed.get((count, lineage))
        if known is None:
            offsets = (r.offsets for r in self.removals[:count] if r.lineage == lineage)
            known = self._removed[count, lineage] = frozenset().union(*offsets)
        return known

    def cleaned_up_to(self, version: int) -> int:
        """Return the offset up to which the records may have been cleaned at a version."""
        return max(self.first_dirty[: self.begun(version) + 1])

    def absent(self, first: int, last: int) -> bool:
        """Return whether the partition may not exist at some moment between two versions."""
        return any(begin <= last and end >= first for begin, end in self.gone)


@dataclass
class History:
    """A finished run: files by version, partitions by number, and the settings of the reader."""

    seed: int
    files: VersionedFiles
    partitions: dict[int, PartitionHistory]
    settings: dict[str, Any]
    deletes: bool = False  # the topic was deleted and created again
    calls: list[tuple[int, str]] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.files.version

    def doing(self, version: int) -> str:
        """Return the writer's call at a version, for the text of a failure."""
        number = bisect_right(self.calls, (version, "\x7f")) - 1
        return self.calls[number][1] if number >= 0 else "opening"


# ---------------------------------------------------------------- a writer


@contextmanager
def small_indexes() -> Iterator[None]:
    """Save key indexes of a few records, under names that are the same in each run."""
    numbers = count()
    real = index.OVERLAY_ENTRIES, index.WORTH_SAVING, manifest.new_name
    index.OVERLAY_ENTRIES, index.WORTH_SAVING = 4, 1
    manifest.new_name = lambda: f"{names.KEY_RUN}{next(numbers):016x}"
    try:
        yield
    finally:
        index.OVERLAY_ENTRIES, index.WORTH_SAVING, manifest.new_name = real


class Writer:
    """A writer of one topic, which records the effect of each call."""

    def __init__(
        self,
        seed: int,
        settings: dict[str, Any],
        partitions: int,
        *,
        reuse: bool,
        files: Callable[..., Any] = VersionedFiles,
        root: str = ROOT,
    ) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.clock = ManualClock(NOW)
        self.files = files(self.clock, reuse=reuse)
        self.in_call = False
        self.settings = settings
        self.history = History(
            seed, self.files, {n: PartitionHistory(f"{TOPIC}-{n}") for n in range(partitions)}, settings
        )
        self.logs: LogDir | None = None
        self.count = 0
        self.ttl_ms = settings.get("lastword_ttl_ms", -1)
        self._rng_of_keys = random.Random(seed)  # of its own: a history is as without lookups otherwise
        self.ongoing: dict[int, dict[int, list[int]]] = {n: {} for n in range(partitions)}

    # ---- records of the effects

    @contextmanager
    def call(self, label: str) -> Iterator[None]:
        begin = self.files.version
        self.history.calls.append((begin, label))
        self.in_call = True
        yield
        self.noted(begin)
        self.in_call = False
        self.files.between_calls()

    def begin(self, rng: random.Random) -> None:
        """Open the log directory, create the topic and append the first records."""
        self.open()
        self.create()
        for _ in range(8):
            _append(self, rng)

    def noted(self, begin: int) -> None:
        assert self.logs is not None
        for number, partition in self.history.partitions.items():
            log = self.log(number)
            undecided = partition.lineages[-1].undecided(log.undecided)
            ends = Ends(log.log_start, log.stable_offset, log.log_end, len(partition.lineages) - 1, undecided)
            # A cleaning may use every committed record to remove older ones.
            known = log.log_end if self.history.calls[-1][1].startswith("clean") else 0
            dirty = max(known, self.logs.dirs.first_dirty(TOPIC, number) or 0)
            partition.note(begin, self.files.version, ends, dirty)

    def log(self, number: int) -> PartitionLog:
        assert self.logs is not None
        return self.logs.dirs.log(TOPIC, number)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the records that each swap removes."""
        real = PartitionLog.replace

        def replace(log: PartitionLog, old: Any, new: Any) -> Any:
            before = {o for s in old for o in _offsets(s)}
            begin = self.files.version
            result = real(log, old, new)
            partition = self.history.partitions[log.partition]
            gone = frozenset(before - set(_offsets(result)))
            partition.removals.append(Removal(begin, self.files.version, len(partition.lineages) - 1, gone))
            return result

        PartitionLog.replace = replace  # type: ignore[method-assign]
        try:
            yield
        finally:
            PartitionLog.replace = real  # type: ignore[method-assign]

    # ---- calls

    def open(self) -> None:
        begin = self.files.version
        self.history.calls.append((begin, "open"))
        self.logs = lastword.open(
            self.root, "a", files=self.files, clock=self.clock, log_cleaner_enable=False, **self.settings
        )
        if self.logs.topics():
            self.noted(begin)

    def create(self) -> None:
        assert self.logs is not None
        begin = self.files.version
        self.history.calls.append((begin, "create"))
        self.logs.create_topic(TOPIC, len(self.history.partitions))
        for partition in self.history.partitions.values():
            partition.gone.append((0 if not partition.gone else partition.gone.pop()[0], self.files.version))
        self.noted(begin)

    def records(self, number: int, size: int) -> list[Written]:
        """Return records at the log end: few keys, unique values, some tombstones, some without a key."""
        rng, offset, partitions = self.rng, self.log(number).log_end, len(self.history.partitions)
        records = []
        for at in range(size):
            self.count += 1
            key = None if rng.random() < 0.03 else b"k%d" % (rng.randrange(self.keys) * partitions + number)
            value = (
                None
                if key is not None and rng.random() < 0.2
                else b"%d." % self.count + b"v" * rng.randrange(30)
            )
            headers = (("h", b"%d" % self.count),) if rng.random() < 0.1 else ()
            if self.ttl_ms >= 0 and self.count % 7 == 0:  # forever, or for an hour
                headers += ((TTL, b"-1" if self.count % 2 else b"%d" % HOUR),)
            timestamp = self.clock.now_ms() - rng.choice((0, 0, 0, 5000))
            records.append(Written(offset + at, timestamp, key, value, headers))
        return records

    keys = 7

    def write(self, number: int, sizes: Sequence[int], codec: int) -> None:
        log = self.log(number)
        lineage = self.history.partitions[number].lineages[-1]
        batches = []
        offset = log.log_end
        for size in sizes:
            builder = BatchBuilder(codec)
            for record in self.records(number, size):
                record = record._replace(offset=offset)
                builder.append(record.timestamp, record.key, record.value, record.headers)
                lineage.records[offset] = record
                offset += 1
            batches.append(builder.build(0))
        with self.call(f"append {sum(sizes)} records"):
            log.append_batches(batches)
            if self.rng.random() < 0.2:
                log.sync()

    def transact(self, number: int, producer_id: int, size: int) -> None:
        log = self.log(number)
        partition = self.history.partitions[number]
        known = log.producer(producer_id)
        sequence = 0 if known is None or known.last_sequence < 0 else known.last_sequence + 1
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        records = [
            record._replace(producer_id=producer_id, headers=()) for record in self.records(number, size)
        ]
        for record in records:
            builder.append(record.timestamp, record.key, record.value)
            partition.lineages[-1].records[record.offset] = record
        self.ongoing[number].setdefault(producer_id, []).extend(record.offset for record in records)
        with self.call(f"transaction of {producer_id}, {size} records"):
            log.append_batch(builder.build(0))

    def decide(self, number: int, producer_id: int, commit: bool) -> None:
        offsets = self.ongoing[number].pop(producer_id)
        if not commit:
            self.history.partitions[number].lineages[-1].aborted.update(offsets)
        with self.call("commit" if commit else "abort"):
            end_transaction(self.log(number), producer_id, 0, commit)

    def look_up(self, number: int) -> None:
        """Look a key up, which saves what was appended in the key index."""
        assert self.logs is not None
        with self.call("get"):
            self.logs[TOPIC].get(b"k0", partition=number)

    def append_expecting(self, number: int) -> None:
        """Append to a key if its newest record is the one of the oracle, and not if it is another one."""
        assert self.logs is not None
        log, lineage = self.log(number), self.history.partitions[number].lineages[-1]
        key = b"k%d" % (self._rng_of_keys.randrange(self.keys) * len(self.history.partitions) + number)
        newest = lineage.newest(log.log_end, lineage.undecided(log.undecided)).get(key, -1)
        has_value = newest >= log.log_start and lineage.records[newest].value is not None
        self.count += 1
        record = Written(log.log_end, self.clock.now_ms(), key, b"%d." % self.count)
        with self.call("append to an expected record"):
            for other in (newest + 1, ABSENT if has_value else 0):
                try:
                    self.logs[TOPIC].append(key, b"refused", partition=number, expect=other)
                except ConflictError:
                    continue
                raise AssertionError(f"{key!r} was appended to, though its newest record is {newest}")
            lineage.records[record.offset] = record
            expected = newest if has_value else ABSENT
            done = self.logs[TOPIC].append(key, record.value, partition=number, expect=expected)
            assert done.offset == record.offset, (done, record)

    def expire_values(self) -> None:
        """Append tombstones for values whose time to live has passed, as `clean` does first."""
        assert self.logs is not None
        for number, partition in self.history.partitions.items():
            log = self.log(number)
            with self.call("expire values"):
                end = log.log_end
                expire_old_values(self.logs.dirs, TOPIC, number)
                for record in scan.records(log.view(), end, log.log_end, committed=False):
                    assert record.value is None, record
                    partition.lineages[-1].records[record.offset] = Written(
                        record.offset, record.timestamp, record.key, None
                    )

    def clean(self, strategy: str, *, due: bool) -> None:
        assert self.logs is not None
        if self.ttl_ms >= 0:
            self.expire_values()
        with self.call(f"clean, {strategy}, {'due' if due else 'all'}"), by_hash(self.history.seed % 2 == 1):
            self.logs.clean(TOPIC, strategy=strategy, due=due)

    def clean_sharded(self, number: int) -> None:
        """Clean in steps, like Spark's executors; the owner of the log publishes the result."""
        from lastword.cleaner.engine.partition import prepare
        from lastword.cleaner.engine.sinks import Publisher
        from lastword.cleaner.policy.plan import CleanRequest
        from lastword.spark import job as jobs
        from lastword.spark import sharded

        assert self.logs is not None
        log, home, files, clock = (
            self.log(number),
            self.logs.dirs.log_dir(TOPIC, number),
            self.files,
            self.clock,
        )
        with self.call("clean, sharded"):
            log.roll()
            plan = prepare(log, log.config, CleanRequest(home.first_dirty(TOPIC, number)))
            if not isinstance(plan, Plan) or plan.action != "clean":
                return
            job = jobs.start(files, log.directory, log.segments, plan, shards=2, unit_bytes=2000, salt=SALT)
            for left, step in (
                (jobs.units_left, lambda n: sharded.extract(files, job.directory, n)),
                (jobs.shards_left, lambda n: sharded.resolve_shard(files, job.directory, n)),
                (jobs.marks_left, lambda n: sharded.mark_unit(files, job.directory, n)),
            ):
                while numbers := left(files, job):
                    met = step(numbers[0])
                    if isinstance(met, sharded.TransactionMet):
                        sharded.read_transactions(files, job.directory, met.offset)
            sharded.merge(files, job)
            while groups := jobs.groups_left(files, job):
                sharded.rewrite_group(files, job.directory, groups[0], clock.now_ms(), clock)
            publisher = Publisher(log, plan, lambda offset: home.set_first_dirty(TOPIC, number, offset))
            publisher.publish(sharded.prepared(files, job, 0.0))
            jobs.remove(files, job.directory)

    def trim(self, number: int) -> None:
        assert self.logs is not None
        log = self.log(number)
        span = log.stable_offset - log.log_start
        if span < 4:
            return
        offset = log.log_start + self.rng.randrange(1, max(2, span // 2))
        with self.call(f"trim {offset}"):
            self.logs.topic(TOPIC).trim(offset, partition=number)

    def expire(self) -> None:
        assert self.logs is not None
        with self.call("expire"):
            self.logs.expire(TOPIC)

    def truncate(self, number: int) -> None:
        assert self.logs is not None
        log, partition = self.log(number), self.history.partitions[number]
        span = log.log_end - log.log_start
        if span < 4 or self.ongoing[number]:
            return
        # A follower of Kafka truncates at the base offset of a batch.
        bases = [header.base_offset for segment in log.segments for header in segment.headers()]
        offset = self.rng.choice([base for base in bases if base > log.log_start][-12:] or [log.log_end])
        if offset == log.log_end:
            return
        # A cleaning removed records because of newer records that are truncated now: they stay removed.
        before = partition.lineages[-1]
        gone = partition.removed_before(self.files.version, len(partition.lineages) - 1)
        partition.lineages.append(
            Lineage(
                {o: r for o, r in before.records.items() if o < offset and o not in gone},
                {o for o in before.aborted if o < offset},
            )
        )
        with self.call(f"truncate {offset}"):
            self.logs.dirs.log_dir(TOPIC, number).truncate(TOPIC, number, offset)

    def recreate(self) -> None:
        assert self.logs is not None
        self.history.deletes = True
        begin = self.files.version
        self.history.calls.append((begin, "delete the topic"))
        self.in_call = True
        self.logs.delete_topic(TOPIC)
        for number, partition in self.history.partitions.items():
            partition.gone.append((begin, 0))
            partition.topics.append(len(partition.lineages))
            partition.lineages.append(Lineage())
            self.ongoing[number].clear()
        self.create()
        self.in_call = False
        self.files.between_calls()

    def reopen(self, *, kill: bool) -> None:
        assert self.logs is not None
        begin = self.files.version
        if kill:
            for directory in self.logs.dirs.directories:
                directory.abandon()
            self.logs.dirs.closed = True
        else:
            self.logs.close()
        self.history.calls.append((begin, "kill" if kill else "close"))
        self.open()

    def remove_deferred(self) -> None:
        assert self.logs is not None
        with self.call("remove waste"):
            for directory in self.logs.dirs.directories:
                directory.remove_deferred()


def _offsets(segment: Any) -> list[int]:
    from lastword.records.formats import read_records

    offsets: list[int] = []
    for header in segment.headers():
        if not header.control:
            data = segment.read_batch(header)
            offsets += [r.offset for r in read_records(data, header, segment.file, position=0)]
    return offsets


def writer_of(
    rng: random.Random,
    seed: int,
    files: Callable[..., Any] = VersionedFiles,
    root: str = ROOT,
    *,
    may_expire: bool = True,
) -> Writer:
    """Return a writer with random settings; the seed determines which kinds of calls it makes."""
    kind = seed % 8
    settings = {
        "cleanup_policy": "compact,delete" if kind == 5 else "compact",
        "segment_bytes": rng.choice((400, 700, 1200)),
        "index_interval_bytes": rng.choice((60, 150, 500)),
        "delete_retention_ms": rng.choice((0, HOUR, 10 * HOUR)),
        "file_delete_delay_ms": rng.choice((0, 0, 60_000)),
        "min_cleanable_dirty_ratio": rng.choice((0.1, 0.5)),
        "lastword_space_target": rng.choice((1.1, 1.5)),
    }
    if kind == 5:
        settings["retention_ms"] = 8 * HOUR
        settings["retention_bytes"] = rng.choice((1500, 4000, -1))
    if may_expire and seed % 5 == 1:
        settings["lastword_ttl_ms"] = 6 * HOUR
    writer = Writer(seed, settings, 2 if kind == 6 else 1, reuse=kind in (1, 4), files=files, root=root)
    writer.keys = rng.choice((3, 7, 20))
    return writer


def steps_of(writer: Writer, rng: random.Random, steps: int, without: Sequence[str] = ()) -> None:
    """Make random calls, except those in `without`."""
    seed = writer.history.seed
    kind = seed % 8
    weights = {
        "append": 12,
        "transact": 4 if kind in (2, 3) else 0,
        "decide": 4 if kind in (2, 3) else 0,
        "clean": 5,
        "sharded": 1,
        "roll": 2,
        "wait": 4,
        "trim": 2 if kind in (3, 4, 6) else 0,
        "expire": 3 if kind == 5 else 0,
        "truncate": 2 if kind == 7 else 0,
        "recreate": 1 if kind == 7 and seed % 16 == 7 else 0,
        "reopen": 1,
        "waste": 1,
    }
    for name in without:
        weights[name] = 0
    for step in range(steps):
        _step(writer, rng, rng.choices(list(weights), list(weights.values()))[0])
        if seed % 3 == 1 and step % 3 == 0 and "get" not in without:
            writer.look_up(step % len(writer.history.partitions))
            writer.append_expecting(step % len(writer.history.partitions))


def make(seed: int, steps: int = 40) -> History:
    """Return the history of random calls on a topic; the same seed gives the same history."""
    rng = random.Random(seed)
    writer = writer_of(rng, seed)
    with writer.watched(), small_indexes():
        writer.begin(rng)
        steps_of(writer, rng, steps)
        assert writer.logs is not None
        writer.history.calls.append((writer.files.version, "close"))
        writer.logs.close()
    return writer.history


def _append(writer: Writer, rng: random.Random) -> None:
    number = rng.randrange(len(writer.history.partitions))
    sizes = [rng.randrange(1, 5) for _ in range(rng.choice((1, 1, 2, 4)))]
    writer.write(number, sizes, rng.choice((0, 0, 0, 1, 3, 4)))


def _step(writer: Writer, rng: random.Random, operation: str) -> None:
    number = rng.randrange(len(writer.history.partitions))
    writer.clock.advance(rng.choice((1, 1000, 60_000)))
    ongoing = writer.ongoing[number]
    if operation == "append":
        _append(writer, rng)
    elif operation == "transact":
        writer.transact(number, rng.choice((11, 12)), rng.randrange(1, 5))
    elif operation == "decide":
        if ongoing:
            writer.decide(number, rng.choice(sorted(ongoing)), rng.random() < 0.5)
    elif operation == "clean":
        writer.clean(rng.choice(("kafka", "generational")), due=rng.random() < 0.3)
    elif operation == "sharded":
        writer.clean_sharded(number)
    elif operation == "roll":
        with writer.call("roll"):
            writer.log(number).roll()
    elif operation == "wait":
        writer.clock.advance(rng.choice((1, 2, 12)) * HOUR)
    elif operation == "trim":
        writer.trim(number)
    elif operation == "expire":
        writer.expire()
    elif operation == "truncate":
        writer.truncate(number)
    elif operation == "recreate":
        writer.recreate()
    elif operation == "reopen":
        writer.reopen(kill=rng.random() < 0.5)
    elif operation == "waste":
        writer.remove_deferred()
