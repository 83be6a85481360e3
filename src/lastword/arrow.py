"""pyarrow, an extra: `pa`, `pc` and `pq` load it when an attribute of theirs is used, and no earlier."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastword.errors import MissingError

__all__ = ["arrow_loaded", "bounded_columns", "has_arrow", "pa", "pc", "pq"]


@cache
def has_arrow() -> bool:
    """Return whether pyarrow is installed; does not load it."""
    return find_spec("pyarrow") is not None


def arrow_loaded() -> bool:
    """Return whether the process has loaded pyarrow, whose import takes as long as half a million records."""
    return "pyarrow" in sys.modules


class _Lazy:
    """A module that is loaded with its first attribute; MissingError without the package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # of a look at the object, such as that of `inspect`
            raise AttributeError(attribute)
        try:
            value = getattr(import_module(self._name), attribute)
        except ModuleNotFoundError as error:
            if error.name and error.name.partition(".")[0] != "pyarrow":
                raise
            raise MissingError.package("Arrow, Parquet or RE2", "pyarrow", "pyarrow>=16") from None
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa, pc, pq = map(_Lazy, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))


def bounded_columns(schema: pa.Schema) -> list[str]:
    """Return the names of columns that get bounds in a Parquet file: no floats, none with others inside.

    Bounds leave NaN out. DataFusion 55.0.0 takes a column with equal bounds for a constant, and shows its NaN
    as that number. DuckDB 2.0.1, for which NaN is the largest number, skips rows of NaN.
    """
    types = pa.types
    return [
        field.name for field in schema if not (types.is_nested(field.type) or types.is_floating(field.type))
    ]
