"""asyncio twins of append, read and follow: `async with lastword.aopen(...)`.

The log is files, so there is nothing that a loop could wait for. Calls that take microseconds run in the
thread of the loop; all others run in threads of this module:

- An append with `ack="os"` runs in the loop (some 10 us; a thread would cost more), as long as nothing waits
  before it. An append with `ack="disk"` is written in the loop and synced in a thread. All appends that wait
  for a sync share the next one.
- `extend` and named producers use one thread, so that their order is the order of calls.
- An append to a log in a bucket is handed in, in the loop, and waits there: appends that were started
  together share a commit.
- A read decodes some hundred records at a time in a thread. A reader that follows polls in the loop and waits
  there, so thousands of them need no thread each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

from lastword.api.reader import LONGEST_PAUSE_SECONDS, POLLS_PER_PAUSE, SHORTEST_PAUSE_SECONDS, Reader
from lastword.api.record import Absent, Appended, K, Record, V
from lastword.api.watch import Watch
from lastword.errors import UsageError
from lastword.parse import Duration, check_count, parse_seconds

if TYPE_CHECKING:
    from lastword.api.lease import Lease
    from lastword.api.logs import (
        CreateOptions,
        LogDir,
        StateOptions,
        TopicOptions,
        UntypedCreateOptions,
        UntypedStateOptions,
    )
    from lastword.api.open_dirs import PathLike
    from lastword.api.schema import PartitionerLike
    from lastword.api.serializers import Serializers
    from lastword.api.state import State
    from lastword.api.topic import AppendOptions, Topic
    from lastword.api.transaction import StateChanges, Transaction
    from lastword.lake.export import Exported
    from lastword.partition.log import PartitionLog

T = TypeVar("T")

THREADS = 4
PREFETCH = 256
"""Records that a read decodes at a time."""


class AsyncReader(AsyncIterator[Record[K, V]], Generic[K, V]):
    """The records of one `AsyncTopic.read`. Use it from one task.

    It begins with its first step, or where an `async with` block begins: "latest" is the log end then.

    A task that is cancelled while it waits has lost no record: the next `async for` over the reader continues
    behind the last record that was returned.

    Attributes:
        position: The next offset of each partition, behind the last record that was returned.
    """

    def __init__(
        self,
        logs: AsyncLogDir,
        make: Callable[[], Reader[K, V]],
        prefetch: int,
        timeout: float | None,
        *,
        follows: bool,
    ) -> None:
        self._logs = logs
        self._make = make
        self._prefetch = prefetch
        self._timeout = timeout
        self._follows = follows
        self._reader: Reader[K, V] | None = None
        self._next: list[Record[K, V]] = []
        self._taking: asyncio.Future[list[Record[K, V]]] | None = None
        self._is_closed = False
        self._position: dict[int, int] = {}

    @property
    def position(self) -> dict[int, int]:
        """The next offset of each partition, as of now: the value does not change with the reader."""
        return dict(self._position)

    @property
    def lease(self) -> Lease | None:
        """The lease of a watch, from its first record on: `await logs.run(lease.advance, position)`."""
        return self._reader.lease if isinstance(self._reader, Watch) else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[K, V]:
        if not self._next:
            self._next = await self._more()
            self._next.reverse()
            if self._is_closed or not self._next:
                self._next = []
                raise StopAsyncIteration
        record = self._next.pop()
        self._position[record.partition] = record.offset + 1
        return record

    async def __aenter__(self) -> Self:
        try:
            if not self._next:  # else it has begun before the block
                self._next = [*reversed(await self._take())]
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the read: a task that waits for a record ends its loop."""
        self._is_closed = True
        self._next = []
        if self._reader is None and self._taking is not None:  # it is made now
            await asyncio.wait([self._taking])
        if isinstance(self._reader, Watch):  # it releases its lease, in a bucket with a commit
            await asyncio.shield(asyncio.ensure_future(self._release(self._reader)))  # also if cancelled
        elif self._reader is not None:
            self._reader.close()

    async def _release(self, watch: Watch[K, V]) -> None:
        await self._logs.in_pool(watch.close)
        if self._taking is not None:  # it may take its lease now
            await asyncio.wait([self._taking])
            await self._logs.in_pool(watch.close)

    async def _more(self) -> list[Record[K, V]]:
        """Return the next records; an empty list at the end."""
        now = asyncio.get_running_loop().time
        quiet_since = now()
        while not self._is_closed:
            began = now()
            if self._reader is None or self._taking is not None or self._reader.is_due:
                records = await self._take()
                if records or not self._follows:
                    return records
            poll_seconds = (now() - began) * (self._logs.waiting_readers + 1)
            pause = min(max(SHORTEST_PAUSE_SECONDS, POLLS_PER_PAUSE * poll_seconds), LONGEST_PAUSE_SECONDS)
            if self._timeout is not None:
                pause = min(pause, quiet_since + self._timeout - now())
                if pause <= 0:
                    break
            self._logs.waiting_readers += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._logs.waiting_readers -= 1
        return []

    async def _take(self) -> list[Record[K, V]]:
        """Decode records in a thread. A task that is cancelled leaves them for the next one."""
        if self._taking is None:
            self._taking = self._logs.in_pool(self._taken)
        try:
            records = await asyncio.shield(self._taking)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._taking = None
            raise
        self._taking = None
        return records

    def _taken(self) -> list[Record[K, V]]:
        if self._reader is None:
            self._reader = self._make()
            self._position = self._reader.position | self._position
        return self._reader.take(self._prefetch)


class AsyncTopic(Generic[K, V]):
    """The asyncio twin of a `Topic`, for append and read.

    Attributes:
        topic: The topic. Its other calls may take long: use `AsyncLogDir.run`.
    """

    def __init__(self, logs: AsyncLogDir, topic: Topic[K, V]) -> None:
        self._logs = logs
        self.topic = topic
        self._is_warm = False

    def __repr__(self) -> str:
        return f"AsyncTopic({self.topic.name!r})"

    async def append(self, key: K | None, value: V | None, **options: Unpack[AppendOptions]) -> Appended:
        """Append one record, as `Topic.append`. Return when it is acknowledged.

        Appends that are awaited one after the other are in this order in the log, and so are those that were
        started in this order.
        """
        logs, topic = self._logs, self.topic
        if not logs.is_queued:
            done = topic.begin_append(key, value, **options)
            if done is not None:  # in a bucket, where appends share a commit
                return await asyncio.wrap_future(done)
        if not self._is_warm or logs.is_queued or "producer" in options or "expect" in options:
            appended: Appended = await logs.in_turn(topic.append, key, value, **options)
            self._is_warm = True
            return appended
        level = options.get("ack") or topic.config.lastword_ack
        if level != "disk":
            return topic.append(key, value, **options)
        options["ack"] = "os"
        appended = topic.append(key, value, **options)
        await logs.synced(topic.name, appended.partition)
        return appended

    async def delete(self, key: K, **options: Unpack[AppendOptions]) -> Appended:
        """Append a tombstone: the record that deletes `key`."""
        return await self.append(key, None, **options)

    async def extend(self, records: Any, **options: Any) -> int:
        """Append many records, as `Topic.extend`. Return how many were acknowledged."""
        appended: int = await self._logs.in_turn(self.topic.extend, records, **options)
        return appended

    def read(
        self, *positional: Any, prefetch: int = PREFETCH, timeout: Duration | None = None, **options: Any
    ) -> AsyncReader[K, V]:
        """Read records with `async for`; the arguments are those of `Topic.read`.

        Args:
            *positional: start, end.
            prefetch: Records that are decoded at a time, and at most in memory.
            timeout: With `follow=True`: end after this long without a record, as for `Topic.read`.
            **options: partition, keys, view, follow, isolation.
        """
        follows = bool(options.get("follow"))
        return self._reader(self.topic.read, positional, prefetch, timeout, options, follows=follows)

    def watch(
        self, *positional: Any, prefetch: int = PREFETCH, timeout: Duration | None = None, **options: Any
    ) -> AsyncReader[K, V]:
        """Read changes with `async for`; the arguments are those of `Topic.watch`, and `prefetch`.

        Use it with `async with`: its lease is released at the end.
        """
        return self._reader(self.topic.watch, positional, prefetch, timeout, options, follows=True)

    def _reader(
        self,
        call: Callable[..., Reader[K, V]],
        positional: tuple[Any, ...],
        prefetch: int,
        timeout: Duration | None,
        options: dict[str, Any],
        *,
        follows: bool,
    ) -> AsyncReader[K, V]:
        prefetch = check_count("prefetch", prefetch, "records", least=1)
        if timeout is not None:
            options["timeout"] = timeout = parse_seconds("timeout", timeout)
        make = partial(call, *positional, **options)
        return AsyncReader(self._logs, make, prefetch, timeout, follows=follows)

    def newest(self, keys: Iterable[K] | None = None, **options: Any) -> AsyncReader[K, V]:
        """Read the newest record of each key; the arguments are those of `Topic.newest`, and `prefetch`."""
        return self.read(keys=keys, view="newest", **options)

    async def get(self, key: K, default: Any = None, **options: Any) -> Any:
        """Return the newest value of a key, as `Topic.get`."""
        return await self._logs.run(self.topic.get, key, default, **options)

    async def get_record(self, key: K, **options: Any) -> Record[K, V] | None:
        """Return the newest record of a key, as `Topic.get_record`."""
        return await self._logs.run(self.topic.get_record, key, **options)

    async def get_many(self, keys: Iterable[K], **options: Any) -> dict[K, V]:
        """Return the newest values of many keys, as `Topic.get_many`."""
        return await self._logs.run(self.topic.get_many, keys, **options)

    async def get_records(self, keys: Iterable[K], **options: Any) -> dict[K, Record[K, V]]:
        """Return the newest records of many keys, as `Topic.get_records`."""
        return await self._logs.run(self.topic.get_records, keys, **options)

    async def export(self, to: PathLike, **options: Any) -> Exported:
        """Bring a Delta table to the newest values of this topic in a thread, as `Topic.export`."""
        return await self._logs.run(self.topic.export, to, **options)


class AsyncState(Generic[K, V]):
    """The asyncio twin of a `State`. Its changes are in the log in the order in which they were started.

    Attributes:
        state: The state. A call of it may read or sync: use `AsyncLogDir.run`, or the methods here.
    """

    def __init__(self, logs: AsyncLogDir, state: State[K, V]) -> None:
        self._logs = logs
        self.state = state

    def __repr__(self) -> str:
        return f"Async{self.state!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.state.close()

    async def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, as `State.get`."""
        return await self._logs.in_pool(self.state.get, key, default)

    async def copy(self) -> dict[K, V]:
        """Return a dict of all keys and values."""
        return await self._logs.in_pool(self.state.copy)

    async def set(
        self, key: K, value: V, *, ttl: Duration | None = None, expect: int | Absent | None = None
    ) -> None:
        """Set a value, as `State.set`."""
        await self._logs.in_turn(self.state.set, key, value, ttl=ttl, expect=expect)

    async def delete(self, key: K, *, expect: int | Absent | None = None) -> None:
        """Delete a key, as `State.delete`."""
        await self._logs.in_turn(self.state.delete, key, expect=expect)

    async def offset(self, key: K) -> int | None:
        """Return the offset of the value of a key, as `State.offset`."""
        return await self._logs.in_pool(self.state.offset, key)

    async def update(self, other: Any = (), /, **more: Any) -> None:
        """Set many values, as `State.update`."""
        await self._logs.in_turn(self.state.update, other, **more)

    async def change(self, key: K, function: Callable[[V], Any], **options: Any) -> V:
        """Replace a value by the result of a function, which runs in a thread; as `State.change`."""
        return await self._logs.in_turn(self.state.change, key, function, **options)

    async def incr(self, key: K, by: Any = 1) -> V:
        """Add to a number, as `State.incr`."""
        return await self._logs.in_turn(self.state.incr, key, by)

    async def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; an absent one gets `default` first."""
        return await self._logs.in_turn(self.state.setdefault, key, default)

    async def pop(self, key: K, *default: Any) -> Any:
        """Delete a key and return its value, as `State.pop`."""
        return await self._logs.in_turn(self.state.pop, key, *default)

    async def touch(self, key: K, *, ttl: Duration | None = None) -> None:
        """Begin the time to live of a value again, as `State.touch`."""
        await self._logs.in_turn(self.state.touch, key, ttl=ttl)

    async def refresh(self) -> int:
        """Apply what other processes have appended, as `State.refresh`."""
        return await self._logs.in_turn(self.state.refresh)

    def watch(self, *positional: Any, **options: Any) -> AsyncReader[K, V]:
        """Read the changes of the state's topic, as `AsyncTopic.watch`."""
        return AsyncTopic(self._logs, self.state.topic).watch(*positional, **options)

    async def sync(self) -> None:
        """Sync the log, as `State.sync`."""
        await self._logs.in_pool(self.state.sync)


class AsyncTransaction:
    """The asyncio twin of a `Transaction`: `async with logs.transaction() as tx`.

    Its calls run one after the other, in the order in which they were started. The commit at the end of the
    block runs in a thread. A task that is cancelled while it waits for the commit does not stop it.

    Attributes:
        transaction: The transaction.
    """

    def __init__(self, logs: AsyncLogDir, transaction: Transaction) -> None:
        self._logs = logs
        self.transaction = transaction

    async def __aenter__(self) -> Self:
        self.transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        await asyncio.shield(self._logs.in_turn(self.transaction.__exit__, kind, error, trace))

    async def append(self, topic: str, key: Any, value: Any, **options: Any) -> None:
        """Append a record when the block ends, as `Transaction.append`."""
        await self._logs.in_turn(self.transaction.append, topic, key, value, **options)

    async def delete(self, topic: str, key: Any) -> None:
        """Append a tombstone when the block ends."""
        await self._logs.in_turn(self.transaction.delete, topic, key)

    async def get(self, topic: str, key: Any, default: Any = None) -> Any:
        """Return the newest value of a key with the changes of the block, as `Transaction.get`."""
        return await self._logs.in_turn(self.transaction.get, topic, key, default)

    async def state(self, name: str, **options: Any) -> StateChanges:
        """Return a state to read and to change in this block, as `Transaction.state`.

        Its calls take microseconds and are not awaited. With `memory="none"` they read the log: use
        `AsyncLogDir.run`.
        """
        return await self._logs.in_turn(self.transaction.state, name, **options)

    async def position(self, name: str, reached: Mapping[int, int] | int) -> None:
        """Save how far an input is processed, as `Transaction.position`."""
        await self._logs.in_turn(self.transaction.position, name, reached)


class _Sync:
    """One sync of a partition that several appends wait for."""

    def __init__(self, before: asyncio.Task[None] | None) -> None:
        self.before = before
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None


class AsyncLogDir:
    """The asyncio twin of a `LogDir`, from `lastword.aopen`. Use it in one event loop.

    Attributes:
        logs: The log directory. Its other calls may take long: use `run`.
    """

    def __init__(self, open_logs: Callable[[], LogDir]) -> None:
        self._open = open_logs
        self._syncs: dict[PartitionLog, _Sync] = {}
        self._queued: set[Future[Any]] = set()
        """The calls that run in the thread of appends or wait for it. Their tasks may be cancelled."""
        self._has_threads = False
        self.waiting_readers = 0
        """Readers that pause between two polls: the more there are, the longer is the pause of each."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "lastword-aio")
        self._appends = ThreadPoolExecutor(1, "lastword-aio-append")
        self._has_threads = True
        try:
            self.logs: LogDir = await self.in_pool(self._open)
        except BaseException:
            self._end_threads()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await asyncio.shield(self.in_turn(self.logs.close))
        finally:
            self._end_threads()

    def __repr__(self) -> str:
        return f"AsyncLogDir({getattr(self, 'logs', 'not open')!r})"

    def _end_threads(self) -> None:
        self._has_threads = False
        self._pool.shutdown(wait=False)
        self._appends.shutdown(wait=False)

    # -------------------------------------------------------------- topics

    @overload
    async def topic(
        self, name: str, *, serializers: Serializers[K, V], partitioner: PartitionerLike | None = None
    ) -> AsyncTopic[K, V]: ...
    @overload
    async def topic(self, name: str, **options: Unpack[TopicOptions]) -> AsyncTopic[Any, Any]: ...
    async def topic(self, name: str, **options: Any) -> AsyncTopic[Any, Any]:
        """Return a topic, as `LogDir.topic`."""
        self._require_open()
        return AsyncTopic(self, await self.run(self.logs.topic, name, **options))

    @overload
    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        serializers: Serializers[K, V],
        **options: Unpack[CreateOptions],
    ) -> AsyncTopic[K, V]: ...
    @overload
    async def create_topic(
        self, name: str, partitions: int | None = None, **options: Unpack[UntypedCreateOptions]
    ) -> AsyncTopic[Any, Any]: ...
    async def create_topic(
        self, name: str, partitions: int | None = None, **options: Any
    ) -> AsyncTopic[Any, Any]:
        """Create a topic, as `LogDir.create_topic`."""
        self._require_open()
        return AsyncTopic(self, await self.run(self.logs.create_topic, name, partitions, **options))

    @overload
    async def state(
        self,
        name: str,
        *,
        serializers: Serializers[K, V],
        default: Callable[[], V] | None = None,
        **options: Unpack[StateOptions],
    ) -> AsyncState[K, V]: ...
    @overload
    async def state(self, name: str, **options: Unpack[UntypedStateOptions]) -> AsyncState[Any, Any]: ...
    async def state(self, name: str, **options: Any) -> AsyncState[Any, Any]:
        """Open the state of a topic, as `LogDir.state`: `carts = await logs.state("carts")`."""
        self._require_open()
        return AsyncState(self, await self.run(self.logs.state, name, **options))

    def transaction(self, **options: Any) -> AsyncTransaction:
        """Change any keys, topics and positions as one, as `LogDir.transaction`."""
        self._require_open()
        return AsyncTransaction(self, self.logs.transaction(**options))

    async def run(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a call of `logs` or of a topic in a thread: `await logs.run(logs.logs.clean, "users")`."""
        return await self.in_pool(lambda: call(*arguments, **options))

    # -------------------------------------------------------------- threads

    def _require_open(self) -> None:
        if not self._has_threads:
            raise UsageError(
                f"{self!r} is not open", remedy='open it: async with lastword.aopen("data", "a") as logs: ...'
            )

    def in_pool(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a call in a thread of the pool."""
        self._require_open()
        return self._loop.run_in_executor(self._pool, call, *arguments)

    @property
    def is_queued(self) -> bool:
        """Return whether an append waits for the thread of appends, or runs there."""
        return bool(self._queued)

    def in_turn(self, call: Callable[..., T], *arguments: Any, **options: Any) -> asyncio.Future[T]:
        """Run a call in the thread of appends, after all calls before it."""
        self._require_open()
        done = self._appends.submit(call, *arguments, **options)
        self._queued.add(done)
        done.add_done_callback(self._queued.discard)
        return asyncio.wrap_future(done, loop=self._loop)

    async def synced(self, topic: str, partition: int) -> None:
        """Return when a sync that begins now or later has ended."""
        log = self.logs.dirs.log(topic, partition)
        sync = self._syncs.get(log)
        if sync is None or sync.has_begun:
            sync = self._syncs[log] = _Sync(None if sync is None else sync.task)
            sync.task = self._loop.create_task(self._sync(sync, log))
            sync.task.add_done_callback(_seen)
        assert sync.task is not None
        await asyncio.shield(sync.task)

    async def _sync(self, sync: _Sync, log: PartitionLog) -> None:
        if sync.before is not None:
            await asyncio.wait([sync.before])
            sync.before = None
        sync.has_begun = True
        try:
            await self.in_pool(log.sync)
        finally:
            if self._syncs.get(log) is sync:
                del self._syncs[log]


def _seen(task: asyncio.Task[None]) -> None:
    """Take the error of a sync, which every append that waits for it raises, if there is one left."""
    if not task.cancelled():
        task.exception()


def aopen(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    mode: Literal["r", "a"] = "r",
    **options: Any,
) -> AsyncLogDir:
    """Open a log for asyncio: `async with lastword.aopen("data", "a") as logs`.

    Args:
        path: As in `lastword.open`.
        mode: As in `lastword.open`.
        **options: The other arguments of `lastword.open`.

    Raises:
        LastwordError: As `lastword.open`, when the block is entered.
    """
    from lastword.api.opening import open

    return AsyncLogDir(lambda: open(path, mode, **options))
