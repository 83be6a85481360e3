"""Fixtures that compile the kernels before the first test, so that no test is timed while it compiles."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.support.exhaustive import stride

settings.register_profile("kernels", deadline=None, max_examples=200 // stride(20))
settings.load_profile("kernels")


@pytest.fixture(autouse=True, scope="session")
def warm_kernels() -> None:
    from lastword.kernels.warming import warm

    if not os.environ.get(
        "NUMBA_BOUNDSCHECK"
    ):  # then some tests run, in a process that compiles for them alone
        warm()
