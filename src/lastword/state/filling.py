"""A mapping of bytes that is filled with many pairs at once, and knows what it holds."""

from __future__ import annotations

from lastword.state.newest import Pairs


class Filling:
    """The newest values of one partition while they are being restored.

    data         key -> value
    size_bytes   of all keys and values: never too few, and exact after `settle`
    """

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self._exact = True

    def put(self, pairs: Pairs) -> None:
        """In their order: a later value replaces an earlier one, None takes the key out."""
        # By way of a small dict: the hashes are at hand when the large one, far in memory, is filled.
        found = dict(zip(pairs.keys, pairs.values, strict=True))
        known = len(self.data)
        self.data.update(found)  # type: ignore[arg-type]  # a None goes with the next step
        # What an older value took is not looked up: that would cost as much as putting in the newer one.
        self._exact = self._exact and len(self.data) - known == len(pairs.keys) and not pairs.deletes
        self.size_bytes += pairs.size_bytes
        if pairs.deletes:
            for key, value in found.items():
                if value is None:
                    del self.data[key]

    def settle(self) -> int:
        """Count again if something was replaced or deleted; returns `size_bytes`."""
        if not self._exact:
            self.size_bytes = sum(map(len, self.data)) + sum(map(len, self.data.values()))
            self._exact = True
        return self.size_bytes
