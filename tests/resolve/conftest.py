"""A fixture that compiles the kernels first, so that no test is timed during a compilation."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


@pytest.fixture(autouse=True, scope="session")
def warm_kernels() -> None:
    from lastword.kernels.warming import warm

    warm()
