"""One record, as it lies in the log: bytes, not yet anybody's types."""

from __future__ import annotations

from dataclasses import dataclass

Header = tuple[str, bytes | None]
"""Name and value. Order and repetitions are kept; a name that is not UTF-8 keeps its bytes as surrogate
escapes."""

NO_TIMESTAMP_TYPE = -1
"""Of magic 0, whose messages have no timestamp."""
CREATE_TIME = 0
LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class RawRecord:
    """`timestamp` in ms, -1 for none; `timestamp_type` 0 (create), 1 (log append) or -1 (none); `key` None is
    no key, `value` None a tombstone."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
