"""Servers of object storage: each starts once for the session, when the first test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.support import stores
from tests.support.stores import Server, ServerMissing


@contextmanager
def started(server: AbstractContextManager[Server]) -> Iterator[Server]:
    try:
        running = server.__enter__()
    except ServerMissing as missing:
        if missing.must_not_skip:
            raise
        pytest.skip(str(missing))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    with started(stores.moto()) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    with started(stores.gcs()) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(stores.azurite(tmp_path_factory.mktemp("azurite") / "log")) as server:
        yield server


@pytest.fixture(scope="session")
def s3mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(stores.s3mock(tmp_path_factory.mktemp("s3mock") / "log")) as server:
        yield server
