"""pyarrow, an extra: `pa`, `pc` and `pq` load it when an attribute of theirs is used, and no earlier."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lastword.errors import MissingError

__all__ = ["PositionedFile", "arrow_loaded", "has_arrow", "pa", "pc", "pq"]


@cache
def has_arrow() -> bool:
    """Return whether pyarrow is installed; does not load it."""
    return find_spec("pyarrow") is not None


def arrow_loaded() -> bool:
    """Return whether the process has loaded pyarrow, whose import takes as long as half a million records."""
    return "pyarrow" in sys.modules


class PositionedFile(io.RawIOBase):
    """A file for Arrow's readers, of `size` bytes. `read_at` takes a size and a position; `end` closes it."""

    def __init__(
        self, size: int, read_at: Callable[[int, int], bytes], end: Callable[[], object] = lambda: None
    ) -> None:
        self._size = size
        self._read_at = read_at
        self._end = end
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read from the position on; -1: to the end."""
        left = max(0, self._size - self._at)
        data = self._read_at(left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._end()
        super().close()


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
