"""The cleaner: what a compacted log may forget, and how it forgets it without losing a word.

Layers, from below:

    policy        values and decisions: `plan.py` (a `Plan`), `choose.py` (up to where, and why), `groups.py`
                  (which segments become one), `generational.py` (the best run of a drive), `quarantine.py`
    engine        one cleaning: `cleaning.py` first (`clean(log, plan, liveness, sink, context)`),
                  `partition.py` (prepare, then clean), `liveness.py` (which records are dead), `build.py`,
                  `rewrite.py`, `output.py`, `certificate.py`, `sinks.py` (publish, collect, or count for a
                  dry run), `report.py`; `transactions.py`, `lease_guard.py`, `throttle.py`
    inspection    the garbage accounts of all partitions of one drive
    drive         `DriveCleaner`: what is due on a drive, done by an executor; its dry run
    distributed   where the log is not open: `remote.py`; one giant partition: `job.py`, `sharded.py`

`lastword.background` runs cleanings on threads.

Three parts of a log
--------------------

    log start          first dirty offset        limit (first uncleanable)        log end
        |  clean              |  dirty                   |  uncleanable               |
        +---------------------+--------------------------+----------------------------+
        one record for a key  new since the last round   active segment, lags

A round takes everything below the limit and leaves, for each key, the newest record there.

The resolve limit
-----------------

A record may kill an older one only if nothing can take the killer back. So the limit is never above what is
fsynced: a round syncs the log up to its limit before its first swap. Without that, a power cut could lose a
newer record that was acknowledged `os`, after it had cost the log an older one that was acknowledged
`disk`. Nor is it above the last stable offset: a transaction that is undecided may yet be aborted.

Map and dead bitmaps
--------------------

`resolve` walks the segments once, in offset order, with a map from key to its newest offset. When a key is
met again the map holds the offset that is replaced: that bit is set in the dead bitmap of its segment.
Nothing after this pass looks at a key. A map too small for all keys takes several passes, each over a share
of the hash range; the bitmaps collect, and there is still one rewrite. Example, two segments, X marks dead:

    offset    0     1     2     3   |   4     5     6     7
    record   a=1   b=1   a=2   c=1  |  b=-   c=2   d=1   a=3        (b=- is a tombstone)
    dead      X     X     X     X   |   .     .     .     .
    after                           |  b=-   c=2   d=1   a=3        offsets stay, gaps are normal

A batch without a dead bit is copied as it is, byte for byte; one with dead bits only is skipped; a mixed
one is cut by record lengths. The last batch of each output stays, at least as an empty one (61 bytes): the
file still covers its range of offsets, for Kafka's recovery too. So does the last batch of each producer,
which carries its sequence, until the producer has been silent for `producer.id.expiration.ms`.

What is left of neighbouring batches becomes one, up to 32 KiB of plain records: scattered over many small
batches, survivors would compress worse with every round. Only batches that agree on everything a batch keeps
once for its records are joined (timestamp kind, leader epoch, codec, delete horizon), and never those of
producers, transactions or control records. `kernels/repack.py` has the rule.

What is left alone
------------------

After the map pass each segment's garbage is known exactly, so a segment without a dead record, and without a
tombstone or a marker whose clock must start, is not touched: a log of inserts is never rewritten, and cold
data is not copied because hot data changed. `groups` puts neighbours that are rewritten into one file while
they fit.

The life of a tombstone
-----------------------

    append      delete("b") is a record with a null value: it kills b's older records as any newer one does
    round 1     it survives; its batch gets a delete horizon, now + delete.retention.ms: a reader in the
                middle of the log has that long to learn of the delete. The horizon is written once, and
                never moved
    round n     now >= horizon: map pass and rewrite drop it, with any older copy that is left

A horizon is set on tombstones below the limit that are the newest of their key, and no others: older copies
leave the log in the same round at the latest, swaps go in ascending order, so nobody can see the old value
after the clock began.

Leases
------

A clock alone is a promise to readers that are quick. One that stopped between a value and its tombstone, and
comes back after the horizon, finds neither, and keeps the value for ever. So a reader may take a lease
(`partition.leases`): a tombstone at or above the lowest live position is not due, whatever the clock says.
Leases are read when a round decides, and again right before each swap that drops a tombstone (`leased.py`):
one that came in between stops the round there.

Transactions
------------

    data T   data T   COMMIT T   data U   data U   ABORT U
    |-- committed ----------|      |-- aborted ----------|
    records like any other         dead at once; they kill nothing

What became of each batch is read from the log's own markers, in one walk over headers that is made when the
map pass meets the first transaction. A transaction index that lost an entry costs no record.

The life of a marker: it stays as long as a batch of its transaction is in the log, even an empty one. The
first round that meets none gives it a delete horizon, and a round after that drops it. The last marker of a
producer whose last batch it is stays, whole: it holds the epoch. Index entries of aborted transactions stay
as long as a batch of theirs.

Messages of magic 0 and 1
-------------------------

They keep their magic and codec: an uncompressed one is copied or goes, a wrapper is cut inside. Two things
they have no place for:

- A delete horizon. The times of files stand in: a tombstone goes when a round before this one has seen it,
  and `delete.retention.ms` lies between the last append to its segment and to the last one cleaned. The last
  segment keeps its own, so that the log's end stays in reach of consumers.
- Empty batches. An output ends with its last survivor, and the next segment's base covers the rest;
  `partition.swap` tells why no crash then brings back what was deleted.

The certificate
---------------

Before anything is published the new file is read back and compared by ways in which the bitmaps take no
part:

1. The map pass kept a sum of H(key, offset) over live records: it added each record as it came and took off,
   for each kill, H(the killer's key, the killed offset). Two keys taken for one leave this sum wrong. It must
   equal the sum over the new file.
2. The CRC of each survivor's bytes, with its offset and timestamp, summed over the sources, must equal the
   sum over the new file.
3. What a batch says once for its records (attributes, leader epoch, producer, epoch and sequence, delete
   horizon, and for a batch of a producer its offsets) is multiplied into the digests of these records: from
   the source's header, with what may legally change, and from the new file's. Only this may change: batches
   that agree on all of it are joined; a horizon is set where a tombstone or a marker starts to wait; a batch
   without records keeps its header, but no codec, horizon or base timestamp (and without a producer no
   largest timestamp); the base timestamp, which record timestamps make up for; the count. A last offset is
   that of a source's batch, a largest timestamp that of a record in the batch.
4. The transaction markers that were to stay are there, whole.
5. Offsets ascend to the end of the group's range, and the counts agree.

Every source batch has its CRC checked in both passes, so damage is never put under a fresh checksum. If
anything fails the outputs are removed, the sources stay as they were, and the partition is quarantined, on
disk, with the reason.

The swap, and what a crash leaves
---------------------------------

`partition.swap` publishes one certified group at a time, lowest offsets first.

    crash while mapping or rewriting    the log as it was; leftovers in <partition>/lastword/ go with the
                                        next round
    crash within a swap                 opening the log finishes it or undoes it: old or new, never a mix
    crash between two swaps             a log with some groups clean: right, only bigger than it will be
    crash before the checkpoint         the same range is resolved again, and found clean

The first dirty offset is recorded after the last swap is durable, and only then.

What it does not do, and why that is fine
-----------------------------------------

- Strategy `kafka` keeps no account of garbage between runs: each of its rounds reads the log below its limit
  once. Nothing but time is lost. Strategy `generational` (`liveness.KeptAccounts`) keeps one, and saves that.

In the background
-----------------

`background.scheduler` runs tasks on threads; `background.states` says who may be cleaned when, and
`engine/throttle.py` limits the I/O of a drive. A caller that needs a partition (to trim, move, truncate or
delete it) does not wait for a cleaning: the cleaning ends at its next safe point, its unpublished files are
removed, and what it had published stays.
"""

from __future__ import annotations

from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.policy.plan import Plan, Reason

__all__ = ["CleanRound", "Plan", "Reason"]
