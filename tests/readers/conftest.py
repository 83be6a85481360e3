"""The harness chooses between plain reading and kernels; the next test of the process has the usual bound."""

from collections.abc import Iterator

import pytest

from lastword.partition import scan


@pytest.fixture(autouse=True)
def usual_bound() -> Iterator[None]:
    """Restore the bound of plain reading."""
    before = scan.PLAIN_BYTES_LOADED
    yield
    scan.PLAIN_BYTES_LOADED = before
