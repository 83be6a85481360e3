"""The rule by which a tombstone, or a transaction marker, leaves the log: `held_by`.

A tombstone deletes every older record of its key, and a marker decides every batch of its transaction. So
each must stay as long as one of these is in the log, or a reader that has read one has not read it. The first
reason in this order that holds keeps it:

    1 OLDER_RECORD   an older record of the key, or a batch of the transaction, is still in the log. A
                     cleaning of the whole log drops these in the same pass: there they hold nothing back
    2 PRODUCER       a marker that is the last batch of a producer: it fences off older epochs
    3 NO_HORIZON     no delete horizon was set yet: the cleaning that meets this reason sets it
    4 HORIZON        the delete horizon has not passed
    5 LEASE          a reader with a lease has yet to read it (markers: never)
    6 PLACE          it holds the end of the log or of a file, and no empty batch can take its place

A delete horizon is `delete.retention.ms` after the first cleaning that found no older record: written into
the batch (Kafka's way), kept as a clock by the garbage accounts, or, for magic 0 and 1, computed from file
times.

`kernels.key_batch` applies reasons 3 to 5 to every record of a chunk, from the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastword.partition.leases import NO_FLOOR

MAY_GO, OLDER_RECORD, PRODUCER, NO_HORIZON, HORIZON, LEASE, PLACE = range(7)


@dataclass(frozen=True, slots=True)
class TombstoneFacts:
    """One tombstone or marker, or many: every field is a value, or an array with a value for each.

    horizon_ms  delete horizon in ms since 1970; any number where `has_horizon` is False
    has_older   an older record of its key, or a batch of its transaction, is in the log
    ends_file   nothing else holds its place at the end of the log, or of the file
    """

    offset: Any
    horizon_ms: Any
    has_horizon: Any = True
    has_older: Any = False
    last_of_producer: Any = False
    ends_file: Any = False


def held_by(facts: TombstoneFacts, now_ms: int, floor: int = NO_FLOOR) -> Any:
    """Return the number of the first reason that keeps a tombstone or marker, `MAY_GO` if none does.

    Args:
        facts: The tombstone or marker, or an array of them.
        now_ms: The current time.
        floor: The lowest offset that a reader with a lease has yet to read.
    """
    held: Any = MAY_GO
    for reason, holds in (
        (OLDER_RECORD, facts.has_older),
        (PRODUCER, facts.last_of_producer),
        (NO_HORIZON, facts.has_horizon ^ True),
        (HORIZON, facts.horizon_ms > now_ms),
        (LEASE, facts.offset >= floor),
        (PLACE, facts.ends_file),
    ):
        held = held + reason * (holds & (held == MAY_GO))
    return held
