"""Another place for the keys of a map than memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastword.files.scratch import Scratch, new_path


class Spill:
    """An array of bytes in a scratch file, which is made when it is first asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._scratch: Scratch | None = None

    def __call__(self, size_bytes: int) -> NDArray[np.uint8]:
        if self._scratch is None:
            self._scratch = Scratch(self._path)
        return np.frombuffer(self._scratch.grow(size_bytes), np.uint8)


def spill_in(directory: str | None) -> Spill | None:
    """None without a directory: then keys lie in memory."""
    return None if directory is None else Spill(new_path(directory))
