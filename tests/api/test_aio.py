"""asyncio twins: append, read and follow in a loop, beside threads and other writers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api import aio
from lastword.errors import (
    KeyRequiredError,
    NotALogDirError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UsageError,
)
from lastword.testing.unsynced import UNSYNCED

TEXT: dict[str, Any] = {"key_serializer": "str", "value_serializer": "str"}


def opened(path: Path, **options: Any) -> aio.AsyncLogDir:
    return lastword.aopen(path, "a", files=UNSYNCED, log_cleaner_enable=False, **options)


async def test_append_and_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", key_serializer="str", value_serializer="json")
        assert (await users.append("ada", {"n": 1})).offset == 0
        await users.delete("ada")
        assert await users.extend([(f"k{n}", n) for n in range(1000)]) == 1000
        records = [record async for record in users.read(prefetch=7)]
        assert [record.offset for record in records] == list(range(1002))
        assert (records[0].value, records[1].value, records[1001].value) == ({"n": 1}, None, 999)
        newest = {record.key async for record in users.read(view="newest", prefetch=64)}
        assert newest == {f"k{n}" for n in range(1000)}
        assert await logs.run(users.topic.bounds) == {0: (0, 1002)}
    for thread in threading.enumerate():
        if thread.name.startswith("lastword-aio"):
            thread.join(10)
            assert not thread.is_alive()


async def test_appends_keep_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT, cleanup_policy="delete")
        await asyncio.gather(
            *(
                users.extend([(None, str(n))]) if n % 7 == 3 else users.append(None, str(n))
                for n in range(100)
            )
        )
        assert [record.value async for record in users.read()] == [str(n) for n in range(100)]


async def test_appends_that_wait_for_the_drive_share_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lastword.aopen(tmp_path, "a", log_cleaner_enable=False) as logs:
        users = await logs.create_topic("users", **TEXT, lastword_ack="disk")
        await users.append("first", "")
        log = logs.logs.dirs.log("users", 0)
        synced: list[int] = []
        real = log.sync

        def sync() -> None:
            synced.append(log.log_end)
            time.sleep(0.02)
            real()

        monkeypatch.setattr(log, "sync", sync)
        results = await asyncio.gather(*(users.append(str(n), "") for n in range(200)))
        assert [result.offset for result in results] == list(range(1, 201))
        assert 1 <= len(synced) <= 20
        assert max(synced) == 201
        sequential = len(synced)
        await users.append("a", "")
        await users.append("b", "")
        assert len(synced) == sequential + 2
        assert synced[-1] == 203


async def test_an_append_is_acknowledged_by_a_sync_that_began_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lastword.aopen(tmp_path, "a", log_cleaner_enable=False) as logs:
        users = await logs.create_topic("users", **TEXT, lastword_ack="disk")
        await users.append("first", "")
        log = logs.logs.dirs.log("users", 0)
        begun: list[int] = []
        go_on = threading.Event()

        def sync() -> None:
            begun.append(log.log_end)
            go_on.wait(10)

        monkeypatch.setattr(log, "sync", sync)
        before = asyncio.create_task(users.append("a", ""))
        while not begun:
            await asyncio.sleep(0.001)
        after = asyncio.create_task(users.append("b", ""))
        await asyncio.sleep(0.01)
        assert begun == [2]
        go_on.set()
        await asyncio.gather(before, after)
        assert begun == [2, 3]


async def test_a_sync_that_fails_fails_each_append_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lastword.aopen(tmp_path, "a", log_cleaner_enable=False) as logs:
        users = await logs.create_topic("users", **TEXT, lastword_ack="disk")
        await users.append("first", "")

        def sync() -> None:
            raise lastword.errors.SyncFailedError("the drive is gone")

        monkeypatch.setattr(logs.logs.dirs.log("users", 0), "sync", sync)
        results = await asyncio.gather(*(users.append(str(n), "") for n in range(5)), return_exceptions=True)
        assert all(isinstance(result, lastword.errors.SyncFailedError) for result in results)


async def test_follow(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
        values: list[str] = []

        async def follow() -> None:
            async for record in users.read(follow=True):
                values.append(record.value)
                if record.value == "last":
                    return

        followers = [asyncio.create_task(follow()) for _ in range(50)]
        for n in range(20):
            await users.append("k", str(n))
            await asyncio.sleep(0.001)
        await users.append("k", "last")
        await asyncio.gather(*followers)
        assert sorted(values) == sorted([*map(str, range(20)), "last"] * 50)


async def test_a_cancelled_reader_loses_no_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
        reader = users.read(follow=True)
        values: list[str] = []
        for n in range(30):
            await users.append("k", str(n))
            try:
                async with asyncio.timeout(0.001 * (n % 4)):
                    async for record in reader:
                        values.append(record.value)
            except TimeoutError:
                pass
        await users.append("k", "last")
        async for record in reader:
            values.append(record.value)
            if record.value == "last":
                break
        assert values == [*map(str, range(30)), "last"]


async def test_a_call_that_nobody_awaits_any_more_stays_in_its_turn(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def records() -> Iterator[tuple[str, str]]:
        begun.set()
        go_on.wait(10)
        yield "k", "old"

    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
        await users.append("k", "first")
        extending = asyncio.create_task(users.extend(records()))
        assert await logs.run(begun.wait, 10)
        extending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await extending
        appending = asyncio.create_task(users.append("k", "new"))
        await asyncio.sleep(0.01)
        go_on.set()
        await appending
        assert [record.value async for record in users.read()] == ["first", "old", "new"]


async def test_a_read_begins_where_its_block_begins(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT, cleanup_policy="compact")
        await users.append("k", "before")
        for reader in (users.read("latest", follow=True, timeout=0.05), users.watch(timeout=0.05)):
            async with reader:
                assert list(reader.position) == [0]
                await users.append("k", "after")
                assert [record.value async for record in reader] == ["after"]
        with pytest.raises(OffsetOutOfRangeError):
            async with users.read(99):
                pass
        assert users.topic.leases() == []


async def test_a_block_around_a_read_that_has_begun_loses_no_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
        await users.extend([("k", str(number)) for number in range(5)])
        reader = users.read()
        first = await anext(reader)
        async with reader:
            assert [first.value, *[record.value async for record in reader]] == ["0", "1", "2", "3", "4"]


async def test_a_watch_that_is_cancelled_at_any_moment_leaves_no_lease(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT, cleanup_policy="compact")
        await users.extend([(str(number), "v") for number in range(1000)])

        async def watch() -> None:
            async with users.watch(start="newest"):
                await asyncio.sleep(0.002)

        for number in range(300):
            watching = asyncio.create_task(watch())
            await asyncio.sleep(0.006 * number / 300)
            watching.cancel()
            await asyncio.wait([watching])
        assert users.topic.leases() == []


async def test_a_follower_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
        await users.append("k", "v")
        assert [r.value async for r in users.read(follow=True, timeout=0.02)] == ["v"]
        async with users.read("latest", follow=True) as reader:
            waiting = asyncio.create_task(anext(reader, None))
            await asyncio.sleep(0.01)
            await reader.aclose()
            assert await waiting is None


async def test_a_reader_that_is_closed_while_it_decodes_ends(tmp_path: Path) -> None:
    decoding, go_on = threading.Event(), threading.Event()

    def loads(data: bytes) -> bytes:
        decoding.set()
        go_on.wait(10)
        return data

    async with opened(tmp_path) as logs:
        await (await logs.create_topic("users")).extend([(b"k", b"%d" % n) for n in range(9)])
        reader = (await logs.topic("users", value_serializer=(bytes, loads))).read()
        waiting = asyncio.create_task(anext(reader, None))
        assert await logs.run(decoding.wait, 10)
        await reader.aclose()
        go_on.set()
        assert await waiting is None
        assert await anext(reader, None) is None
        assert reader.position == {0: 0}


async def test_errors_are_those_of_the_twins(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError):
        async with lastword.aopen(tmp_path / "none"):
            pass
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT, cleanup_policy="compact")
        for _ in range(2):
            with pytest.raises(KeyRequiredError):
                await users.append(None, "v")
            await users.append("k", "v")
        reader = users.read(99)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                await anext(reader)
        for prefetch in (0, "5", None):
            with pytest.raises(UsageError):
                users.read(prefetch=prefetch)


async def test_a_log_that_is_not_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        users = await logs.create_topic("users", **TEXT)
    for closed in (logs, lastword.aopen(tmp_path)):
        for call in (
            lambda logs=closed: logs.topic("users"),
            lambda logs=closed: logs.create_topic("users"),
            lambda logs=closed: logs.run(print),
        ):
            with pytest.raises(UsageError, match="is not open"):
                await call()
    with pytest.raises(UsageError, match="is not open"):
        await users.append("k", "v")
    with pytest.raises(UsageError, match="is not open"):
        await anext(users.read())


@pytest.mark.parametrize("place", ["a directory", "a bucket"])
async def test_headers_may_be_an_iterator(tmp_path: Path, place: str) -> None:
    """They are read once, also where the append is begun twice, or runs in a transaction."""
    if place == "a bucket":
        pytest.importorskip("obstore")
    path = str(tmp_path) if place == "a directory" else "memory://aio/headers"
    async with lastword.aopen(path, "a", log_cleaner_enable=False) as logs:
        users = await logs.create_topic("users", **TEXT)
        for _ in range(2):  # the first append of a topic runs in a thread
            await users.append("ada", "Turin", headers=iter([("a", b"1"), ("b", None)]))
        assert [r.headers async for r in users.read()] == [(("a", b"1"), ("b", None))] * 2
        with pytest.raises(UsageError, match="pairs of str and bytes"):
            await users.append("ada", "Rome", headers=5)  # type: ignore[arg-type]


async def test_export(tmp_path: Path) -> None:
    """An export does not stop the loop."""
    pytest.importorskip("deltalake")
    async with opened(tmp_path / "log") as logs:
        users = await logs.create_topic("users", cleanup_policy="compact", **TEXT)
        await users.extend([(f"k{n}", "v") for n in range(100)])
        steps: list[Any] = []
        task = asyncio.create_task(users.export(f"delta:{tmp_path}/table", progress=steps.append))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert ((await task).added_rows, turns > 2) == (100, True)
        assert steps[-1].done_bytes == steps[-1].total_bytes > 0
        await users.delete("k1")
        assert (await users.export(f"delta:{tmp_path}/table", dry_run=True)).removed_rows == 1


async def test_appends_to_a_bucket_that_were_started_together_share_a_commit() -> None:
    pytest.importorskip("obstore")
    async with lastword.aopen("memory://aio/commits", "a", log_cleaner_enable=False) as logs:
        users = await logs.create_topic("users", max_message_bytes="1KiB", **TEXT)
        before = len(logs.logs.dirs._bucket.load().manifest.history)  # type: ignore[attr-defined]
        started = [asyncio.ensure_future(users.append(f"k{number}", "v")) for number in range(40)]
        started.append(asyncio.ensure_future(users.append("large", "v" * 2000)))
        await asyncio.sleep(0)
        started[7].cancel()
        extended = asyncio.ensure_future(users.extend([("last", "v")]))
        done = await asyncio.gather(*started, return_exceptions=True)
        assert isinstance(done[7], asyncio.CancelledError)
        assert isinstance(done[40], RecordTooLargeError)
        assert [result.offset for result in done[8:40]] == list(range(8, 40))
        await extended
        commits = len(logs.logs.dirs._bucket.load().manifest.history) - before  # type: ignore[attr-defined]
        assert commits <= 3
        assert [record.key async for record in users.read()] == [*(f"k{n}" for n in range(40)), "last"]


async def test_a_state(tmp_path: Path) -> None:
    async with opened(tmp_path) as logs:
        carts = await logs.state("carts")
        await carts.set("ada", ["book"])
        assert await carts.change("ada", lambda items: [*items, "pen"], default=[]) == ["book", "pen"]
        assert await asyncio.gather(*(carts.incr("n") for _ in range(20))) == list(range(1, 21))
        await carts.update({"bob": [], "eve": []})
        assert await carts.setdefault("bob", ["x"]) == [] and await carts.pop("eve") == []
        await carts.delete("bob")
        assert await carts.get("bob") is None and await carts.get("n") == 20
        with pytest.raises(KeyError):
            await carts.delete("bob")
        assert await carts.copy() == dict(carts.state) == {"ada": ["book", "pen"], "n": 20}
        assert await carts.refresh() == 0
        await carts.sync()
        async with await logs.state("carts") as again:
            assert await again.get("n") == 20
        topic = await logs.topic("carts")
        reader = topic.read(prefetch=2)
        await anext(reader)
        position = reader.position
        assert len([record async for record in reader]) == 25 and position == {0: 1}
    with pytest.raises(UsageError, match="is closed"):
        len(carts.state)


@pytest.mark.parametrize("in_bucket", [False, True])
async def test_a_transaction(tmp_path: Path, in_bucket: bool) -> None:
    """Its calls come in the order in which they were started; a block that raises writes nothing."""
    if in_bucket:
        pytest.importorskip("obstore")
    path = f"memory://aio{tmp_path}" if in_bucket else tmp_path
    async with lastword.aopen(path, "a", log_cleaner_enable=False) as logs:
        audit = await logs.create_topic("audit", **TEXT)
        async with logs.transaction() as tx:
            carts = await tx.state("carts")
            carts["ada"] = ["book"]
            await asyncio.gather(*(tx.append("audit", "ada", str(number)) for number in range(20)))
            await tx.delete("audit", "bob")
            await tx.position("input", {0: 7})
            assert await tx.get("audit", "ada") == "19"
            assert [record async for record in audit.read()] == []
        values = [record.value async for record in audit.read()]
        assert values == [*map(str, range(20)), None]
        assert await (await logs.state("carts")).get("ada") == ["book"]
        assert logs.logs.position("input") == {0: 7}
        with pytest.raises(ZeroDivisionError):
            async with logs.transaction(max_bytes="1MiB") as tx:
                await tx.append("audit", "ada", "never")
                1 / 0  # noqa: B018
        with pytest.raises(UsageError, match="not open"):
            await tx.append("audit", "ada", "later")
        assert len([record async for record in audit.read()]) == 21
