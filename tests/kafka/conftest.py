"""One JVM with Kafka's tools for the whole session; tests start the brokers, few and shared."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.hostile import Address
from tests.support.jars import KAFKA_VERSION, OLDER_VERSION, KafkaJars, KafkaMissing, must_not_skip
from tests.support.kafka import Broker, Clients, Tools, _free_ports

LOGIN = "org.apache.kafka.common.security"
"""The package of the login modules."""


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


def generator(name: str) -> dict[str, Any]:
    """Return the names that a script of `scripts/` defines."""
    return runpy.run_path(str(Path(__file__).parents[2] / "scripts" / name))


def client_of(cluster: Clients) -> Client:
    host, _, port = cluster.bootstrap.rpartition(":")
    return Client(Address(host, int(port)), timeout=30)


def secured_broker(
    tools: Tools, directory: Path, protocol: str, settings: dict[str, str]
) -> tuple[Broker, str]:
    """Return a broker with a second listener, `SASL`, of this security protocol, and its address."""
    plain, controller, secured = _free_ports(3)
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},"
        f"SASL://127.0.0.1:{secured}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{secured}",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:{protocol}",
    }
    broker = Broker(tools, directory, listeners | settings, keeps_port=True)
    broker.bootstrap, broker._controller = f"127.0.0.1:{plain}", controller
    return broker, f"127.0.0.1:{secured}"


@pytest.fixture(scope="session")
def kafka_jars() -> KafkaJars:
    return jars_of(KAFKA_VERSION)


@pytest.fixture(scope="session")
def tools(kafka_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with Tools(kafka_jars, tmp_path_factory.mktemp("tools") / "tools.log") as tools:
        yield tools
