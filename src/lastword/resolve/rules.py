"""What decides about records, other than newer ones of their keys."""

from __future__ import annotations

from dataclasses import dataclass

LAST_HASH = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one resolution.

    decided       a transaction whose end is not known is an error
    keyless_go    records without a key are dead
    now_ms        tombstones below `due_below` whose delete horizon is at or before it are dead: reasons
                  3 to 5 of `partition.tombstones`
    keep_copies   aborted records count as copies of their keys
    last_hash     only keys up to this hash are looked at
    """

    decided: bool = False
    keyless_go: bool = False
    now_ms: int = 0
    due_below: int = 0
    keep_copies: bool = False
    last_hash: int = LAST_HASH
