"""`ServerContext`: what waits for another future ends with it, however that one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest

import lastword
from lastword.errors import BusyError
from lastword.protocol import codes
from lastword.server import Server
from lastword.server.context import ServerContext
from tests.server.client import Client, batch


def given_up() -> Future[Any]:
    """Return the future of a commit that is cancelled."""
    future: Future[Any] = Future()
    assert future.cancel()
    return future


def in_loop(server: Server, work: Callable[[ServerContext], Awaitable[Any]]) -> Any:
    """Return the result of work in the loop of a server, within 10 seconds."""

    async def limited() -> Any:
        return await asyncio.wait_for(work(server.context), 10)

    return asyncio.run_coroutine_threadsafe(limited(), server.loop).result(20)


def cancelled_commit(context: ServerContext) -> asyncio.Future[Any]:
    return context.awaiting(given_up())


def after_a_cancelled_future(context: ServerContext) -> asyncio.Future[Any]:
    before = context.loop.create_future()
    before.cancel()
    return context.then(before, lambda: "called")


def before_a_cancelled_future(context: ServerContext) -> asyncio.Future[Any]:
    before, behind = context.loop.create_future(), context.loop.create_future()
    before.set_result(None)
    behind.cancel()
    return context.then(before, lambda: behind)


@pytest.mark.parametrize("waiting", [cancelled_commit, after_a_cancelled_future, before_a_cancelled_future])
def test_a_future_that_is_cancelled_ends_what_waits_for_it(
    server: Server, waiting: Callable[[ServerContext], asyncio.Future[Any]]
) -> None:
    async def ends(context: ServerContext) -> Any:
        with pytest.raises(BusyError, match="cancelled") as refusal:
            await waiting(context)
        return refusal.value.retriable

    assert in_loop(server, ends)


def test_what_is_cancelled_itself_takes_no_result(server: Server) -> None:
    async def unhandled(context: ServerContext) -> list[Any]:
        errors: list[Any] = []
        context.loop.set_exception_handler(lambda _, what: errors.append(what))
        commit: Future[Any] = Future()
        before, behind = context.loop.create_future(), context.loop.create_future()
        for waiting in (context.awaiting(commit), context.then(before, lambda: behind)):
            waiting.cancel()
        commit.set_result(None)
        before.set_result(None)
        behind.set_result(None)
        await asyncio.sleep(0.05)
        context.loop.set_exception_handler(None)
        return errors

    assert in_loop(server, unhandled) == []


def test_a_request_whose_commit_is_cancelled_is_answered(
    server: Server, client: Client, logs: lastword.LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.create_topic("users")
    monkeypatch.setattr(server.context, "begin_append", lambda *_: given_up())
    assert client.produce("users", batch((b"a", b"1"))).error_code == codes.REQUEST_TIMED_OUT
    monkeypatch.undo()
    with Client(server) as another:  # the first one would not know which of its batches are stored
        assert another.produce("users", batch((b"b", b"1"))).error_code == codes.NONE
