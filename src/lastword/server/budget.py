"""The memory for records that requests decompress, at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lastword.protocol import codes
from lastword.server.topics import Refused

WAIT_SECONDS = 30.0


class DecompressionBudget:
    """Bytes that threads take before they decompress (`lastword.decompression.bytes`).

    A thread takes all that it may need at once, and so holds nothing while it waits.

    Attributes:
        most: The bytes of the budget.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Hold `size` bytes, at most the whole budget.

        Raises:
            Refused: The bytes were in use for WAIT_SECONDS. Clients send the request again.
        """
        size = min(size, self.most)
        with self._changed:
            if not self._changed.wait_for(lambda: self._used + size <= self.most, WAIT_SECONDS):
                text = "other requests use the memory for decompression (lastword.decompression.bytes)"
                raise Refused(codes.REQUEST_TIMED_OUT, text)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()
