"""`GivenBuffer`: memory that an append gives to the file.

A private copy of a log in a bucket has its new files in memory. It keeps a given buffer in place of a copy of
its bytes: a commit then touches new memory once, and not twice.
"""

from __future__ import annotations

import numpy as np

GIVEN_BYTES = 1 << 20
"""Smaller appends are copied: they share the memory of their thread."""


class GivenBuffer(np.ndarray):
    """An array of bytes that nothing changes after it, or a part of it, was appended to a file."""

    is_given = True

    @classmethod
    def of(cls, size: int) -> GivenBuffer:
        """Return new memory."""
        return np.empty(size, np.uint8).view(cls)
