"""Kernels are compiled before the first test, so that no test is timed while it compiles."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


@pytest.fixture(autouse=True, scope="session")
def warm_kernels() -> None:
    from lastword.kernels.warming import warm

    warm()
