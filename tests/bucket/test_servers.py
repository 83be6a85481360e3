"""A log on the servers: the same result as in memory; test_conformance.py has Azurite and S3Mock."""

from __future__ import annotations

import pytest

import lastword
from lastword.errors import NotALogDirError, UnconditionalStoreError
from tests.support.stores import Server

TOPIC = {"key_serializer": "str", "value_serializer": "int64", "cleanup_policy": "compact"}
SETTINGS = {"log_cleaner_enable": False, "lastword_commit_linger_ms": 0}


def life(url: str, options: dict[str, str] | None) -> list[object]:
    """Append, clean and read a log; return everything that a reader saw."""
    seen: list[object] = []
    with lastword.open(url, "a", storage_options=options, **SETTINGS) as logs:
        topic = logs.create_topic("users", partitions=2, **TOPIC)
        topic.extend((f"k{number % 70}", number) for number in range(300))
        topic.append("k1", None)
        before = [(r.partition, r.offset, r.key, r.value) for r in topic.read()]
        seen += [sorted(before), [rounds.certificate.records for rounds in logs.clean("users")]]
        logs.state("users")["k2"] = -2
    with lastword.open(url, storage_options=options) as logs:
        topic = logs["users"]
        seen.append(sorted((r.partition, r.offset, r.key, r.value) for r in topic.read()))
        seen.append(sorted((r.key, r.value) for r in topic.read(view="newest")))
        seen.append(topic.bounds())
    return seen


@pytest.mark.parametrize("name", ["gcs", pytest.param("moto", marks=pytest.mark.slow)])
def test_a_log_on_a_server(name: str, request: pytest.FixtureRequest, url: str) -> None:
    server: Server = request.getfixturevalue(name)
    assert life(f"{server.root}/a/log", server.options) == life(url, None)


def test_a_store_that_ignores_conditions_is_only_read(moto: Server) -> None:
    with pytest.raises(UnconditionalStoreError, match="s3://ignorant/log"):
        lastword.open("s3://ignorant/log", "a", storage_options=moto.options)
    with pytest.raises(NotALogDirError):  # nothing was made; there is nothing to read
        lastword.open("s3://ignorant/log", storage_options=moto.options)
