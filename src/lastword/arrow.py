"""pyarrow, an extra: loaded by the functions that read or make Arrow data, and no earlier."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastword.errors import MissingError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

__all__ = ["arrow_loaded", "has_arrow", "pa", "pc", "pq"]
_MODULES = {"pa": "pyarrow", "pc": "pyarrow.compute", "pq": "pyarrow.parquet"}


@cache
def has_arrow() -> bool:
    """Return whether pyarrow is installed; does not load it."""
    return find_spec("pyarrow") is not None


def arrow_loaded() -> bool:
    """Return whether the process has loaded pyarrow, whose import takes as long as half a million records."""
    return "pyarrow" in sys.modules


def __getattr__(name: str) -> Any:
    """Load a module at `from lastword.arrow import pa`; MissingError without the package."""
    if name not in _MODULES:
        raise AttributeError(name)
    try:
        module = globals()[name] = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != "pyarrow":
            raise
        raise MissingError.package("Arrow, Parquet or RE2", "pyarrow", "pyarrow>=16") from None
    return module
