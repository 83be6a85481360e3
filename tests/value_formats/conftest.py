"""A schema registry for the tests of a module's values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.value_formats.registries import FakeRegistry, serving


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    from lastword.value_formats.registry import format_by_id

    format_by_id.cache_clear()
    with serving() as server:
        yield server
