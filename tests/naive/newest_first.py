"""The newest record of each key, with a set of the keys that were met, the newest record first."""

from __future__ import annotations

from collections.abc import Iterable

from tests.naive.pack import Record


def take_newest(records: Iterable[Record], met: set[bytes]) -> list[Record]:
    """Return the records, given last first, whose key is not in `met`, and add their keys to it."""
    live = []
    for record in records:
        if record.key is not None and record.key not in met:
            met.add(record.key)
            live.append(record)
    return live
