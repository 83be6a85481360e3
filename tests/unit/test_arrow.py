"""`lastword.arrow` loads pyarrow when an attribute is used, and says what is missing without it."""

from __future__ import annotations

import sys

import pytest

from lastword import arrow
from lastword.errors import MissingError


@pytest.fixture
def lazy() -> object:
    """Return a module of which nothing was used yet."""
    return type(arrow.pa)("pyarrow")


def test_the_package_is_loaded_with_its_first_attribute(lazy: object) -> None:
    assert set(vars(lazy)) == {"_name"}
    assert lazy.int64() == arrow.pa.int64()  # type: ignore[attr-defined]
    assert "int64" in vars(lazy)


def test_a_look_at_the_object_loads_nothing(lazy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not hasattr(lazy, "__wrapped__")


def test_without_the_package_the_error_names_it(lazy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingError, match="pyarrow"):
        lazy.int64()  # type: ignore[attr-defined]
