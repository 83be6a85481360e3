"""The log of one partition: an ordered set of segments.

Stands on `segment`. Start reading at `log.py`.

Segments. `segment_store.py` is the set of segments. `directory_segments.py` reads it from a directory, and
adds to it. `swap.py` publishes rewritten segments, `cut.py` cuts either end; both list what every crash
leaves.

Writing. `log.py` is `PartitionLog`: producers, transactions, leader epochs, and the promises at each level;
`appending.py` checks and numbers batches. It stands on `local_log.py`, which has the segments and decides
when a segment ends; `durability.py` syncs. `staged_batches.py`: batches of a commit, and where it begins
until it is complete.

Reading. `view.py` shows a partition without a lock, `reads.py` reads ranges of it, `moment.py` reads newest
values, `lookups.py` single records.

Opening. `open.py` has the rules; `recovery.py` repairs, `durability.py` says where a log must end,
`snapshots.py` computes the producer state (`producer_state.py`).

Beside the log. `leases.py`: when a tombstone may go, and the readers that hold it back. `named.py`: the
journal of producers with names.
"""

from lastword.partition.appending import AppendedBatch
from lastword.partition.log import PartitionLog
from lastword.partition.open import open_log
from lastword.partition.recovery import Recovery
from lastword.partition.view import PartitionView

__all__ = ["AppendedBatch", "PartitionLog", "PartitionView", "Recovery", "open_log"]
