"""A user's program for the type checker: `make check` runs mypy over it, and a test runs it."""

from __future__ import annotations

import json
from typing import Any, assert_type

import lastword
from lastword import Appended, AsyncState, AsyncTopic, LogDir, Record, Serializers, State, Topic


class User:
    """A class of a user's program."""

    def __init__(self, city: str) -> None:
        self.city = city


def dumps(user: User) -> bytes:
    return json.dumps({"city": user.city}).encode()


def loads(data: bytes) -> User:
    return User(**json.loads(data))


class Form:
    """An object with both directions."""

    def dumps(self, value: User, /) -> bytes:
        return dumps(value)

    def loads(self, data: bytes, /) -> User:
        return loads(data)


TOTALS = lastword.serializers("str", "int64")
USERS = lastword.serializers("str", (dumps, loads))


def run(path: str) -> None:
    assert_type(TOTALS, Serializers[str, int])
    assert_type(USERS, Serializers[str, User])
    assert_type(lastword.serializers("bytes", Form()), Serializers[bytes, User])
    assert_type(lastword.serializers((dumps, loads), "float64"), Serializers[User, float])
    with lastword.open(path, "a") as logs:
        assert_type(logs, LogDir)
        totals = logs.state("totals", serializers=TOTALS, default=int)
        assert_type(totals, State[str, int])
        totals["a"] += 1
        assert_type(totals["a"], int)

        users = logs.create_topic("users", serializers=USERS, cleanup_policy="compact")
        assert_type(users, Topic[str, User])
        users.append("ada", User("Turin"))
        users.delete("bob")
        for record in users.read():
            assert_type(record, Record[str, User])
            assert_type(record.value, User | None)

        assert_type(logs.topic("totals", serializers=TOTALS), Topic[str, int])
        # Words are for scripts, and so are the serializers that are saved on disk.
        assert_type(logs.create_topic("raw", 2, key_serializer="str"), Topic[Any, Any])
        assert_type(logs.topic("totals"), Topic[Any, Any])
        assert_type(logs.state("totals", value_serializer="int64"), State[Any, Any])


def run_in_a_bucket() -> None:
    with lastword.open("memory://typed/use", "a") as logs:
        users = logs.create_topic("users", serializers=USERS, cleanup_policy="compact")
        assert_type(users, Topic[str, User])
        assert_type(users.append("ada", User("Turin")), Appended)
        users.extend([("bob", User("Oslo")), ("eve", None)])
        assert_type(next(iter(users.newest(["bob"]))).value, User | None)
        totals = logs.state("totals", serializers=TOTALS, default=int)
        totals.incr("a")
        assert_type(totals["a"], int)


async def run_in_a_loop(path: str) -> None:
    async with lastword.aopen(path, "a") as logs:
        users = await logs.topic("users", serializers=USERS)
        assert_type(users, AsyncTopic[str, User])
        assert_type(await users.append("ada", User("Rome")), Appended)
        async for record in users.newest(["ada"]):
            assert_type(record, Record[str, User])
        totals = await logs.state("totals", serializers=TOTALS, default=int)
        assert_type(totals, AsyncState[str, int])
        assert_type(await totals.incr("a"), int)
        assert_type(await logs.topic("raw"), AsyncTopic[Any, Any])
        created = await logs.create_topic("other", 2, serializers=TOTALS)
        assert_type(created, AsyncTopic[str, int])
