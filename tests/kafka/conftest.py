"""One JVM with Kafka's tools for the whole session; tests start the brokers, few and shared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.jars import KAFKA_VERSION, OLDER_VERSION, KafkaJars, KafkaMissing, must_not_skip
from tests.support.kafka import Tools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        needs_jvm = "kafka_jars" in getattr(item, "fixturenames", ())
        if here in item.path.parents and needs_jvm:
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.xdist_group("kafka"))  # one worker, so that these fixtures are shared


VERSIONS = (KAFKA_VERSION, OLDER_VERSION)
"""Settings of the brokers in tests where a directory goes to a broker and back."""


@cache
def jars_of(version: str) -> KafkaJars:
    """Return the jars of a version, or skip the test."""
    try:
        return KafkaJars.find_or_fetch(version)
    except KafkaMissing as missing:
        if must_not_skip(missing):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka_jars() -> KafkaJars:
    return jars_of(KAFKA_VERSION)


@pytest.fixture(scope="session")
def tools(kafka_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with Tools(kafka_jars, tmp_path_factory.mktemp("tools") / "tools.log") as tools:
        yield tools
