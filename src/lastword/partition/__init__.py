"""An ordered set of segments is the log of one partition.

Stands on `segment`. `log.py` is the writing side: append, roll, sync, replace, and what is promised at which
level; its parts are `tail.py` (the end that grows), `appending.py` (how batches come in), `rolling.py` (when
a segment ends) and `durability.py` (what is synced when). `view.py` is the reading side, without a lock;
`follow.py` looks again and again. `swap.py` publishes rewritten segments and says what every crash of that
leaves. `open.py` puts right what a crash left (`leftovers.py`, `damage.py`). `producer_state.py` is what a
partition remembers of its producers, `replay.py` how that is found again, `named.py` the journal of producers
with names. `leases.py` is how far readers have come, for whoever drops tombstones, `lessee.py` their own side
of it; `incomplete_commit.py` notes where a commit begins until it is complete. Start reading at log.py.
"""

from lastword.partition.appending import AppendedBatch
from lastword.partition.log import PartitionLog
from lastword.partition.open import open_log
from lastword.partition.recovery import Recovery, Repaired
from lastword.partition.view import PartitionView

__all__ = ["AppendedBatch", "PartitionLog", "PartitionView", "Recovery", "Repaired", "open_log"]
