"""A user's program for the type checker: `make check` runs mypy over it, and a test runs it."""

from __future__ import annotations

import json
from typing import Any, assert_type

import lastword
from lastword import LogDir, Record, State, Topic


class User:
    """A class of a user's program."""

    def __init__(self, city: str) -> None:
        self.city = city


def dumps(user: User) -> bytes:
    return json.dumps({"city": user.city}).encode()


def loads(data: bytes) -> User:
    return User(**json.loads(data))


def run(path: str) -> None:
    with lastword.open(path, "a") as logs:
        assert_type(logs, LogDir)
        totals = logs.state("totals", key_serializer="str", value_serializer="int64", default=int)
        assert_type(totals, State[str, int])
        totals["a"] += 1
        assert_type(totals["a"], int)

        users = logs.create_topic(
            "users", key_serializer="str", value_serializer=(dumps, loads), cleanup_policy="compact"
        )
        assert_type(users, Topic[str, User])
        users.append("ada", User("Turin"))
        users.delete("bob")
        for record in users.read():
            assert_type(record, Record[str, User])
            assert_type(record.value, User | None)

        assert_type(logs.create_topic("raw", 2, cleanup_policy="compact"), Topic[bytes, bytes])
        assert_type(logs.create_topic("docs", key_serializer="str", value_serializer="json"), Topic[str, Any])
        assert_type(logs.topic("totals", key_serializer="str", value_serializer="int64"), Topic[str, int])
        assert_type(logs.topic("totals"), Topic[Any, Any])  # as saved on disk, unknown to a type checker
