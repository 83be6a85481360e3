"""Another place for the keys of a map than memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastword.files.scratch import Scratch


class Spill:
    """The arena's bytes in a scratch file, made when the first key comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._scratch: Scratch | None = None

    def __call__(self, size_bytes: int) -> NDArray[np.uint8]:
        if self._scratch is None:
            self._scratch = Scratch(self._path)
        return np.frombuffer(self._scratch.grow(size_bytes), np.uint8)
