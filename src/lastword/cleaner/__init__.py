"""The cleaner: which records a compacted log may drop, and how it drops them without loss.

Layers, from below:

    policy        values and decisions: `plan.py` (a `Plan`), `choose.py` (up to where, and why), `groups.py`
                  (which segments become one), `generational.py` (the best run of a drive), `quarantine.py`
    engine        one cleaning: `cleaning.py` first (`clean(log, plan, liveness, sink, context)`),
                  `partition.py` (prepare, then clean), `liveness.py` (which records are dead), `build.py`,
                  `rewrite.py`, `output.py`, `certificate.py`, `sinks.py` (publish, collect, or count for a
                  dry run), `report.py`; `transactions.py`, `lease_guard.py`, `throttle.py`
    inspection    the garbage accounts of all partitions of one drive
    drive         `DriveCleaner`: what is due on a drive, done by an executor; its dry run
    job_files     formats of the files of a divided cleaning (`spark.sharded`)

`lastword.background` runs cleanings on threads.

Three parts of a log
--------------------

    log start          first dirty offset        limit (first uncleanable)        log end
        |  clean              |  dirty                   |  uncleanable               |
        +---------------------+--------------------------+----------------------------+
        one record per key    new since the last         active segment, lags
                              cleaning

A cleaning takes everything below the limit and leaves, for each key, the newest record there.

The limit
---------

A record may supersede an older one only if the newer record can never be taken back. So the limit is never
above the synced offset: a cleaning syncs the log up to its limit before its first swap. Otherwise a power cut
could lose a newer record that was acknowledged `os`, after an older one, acknowledged `disk`, was removed
because of it. The limit is also never above the last stable offset: an undecided transaction may yet be
aborted.

Map and dead bitmaps
--------------------

`resolve` reads the segments once, in offset order, with a map from key to its newest offset. When a key
occurs again, the map holds the offset that is superseded: that bit is set in the dead bitmap of its segment.
Nothing after this scan reads a key.

A whole cleaning of a log that is not small, by strategy `kafka` or without a garbage index, reads the
segments from the newest to the oldest instead, with a map of hashes (`resolve.hash_map`): a record whose key
was met is dead. So the fate of a record is known when it is read, and what the rewrite needs of its chunk is
copied there and then (`resolve.survivors`). The log is read and decompressed once. The rewrite is the same,
to the byte, and reads chunks again that were not kept. The garbage index gets the keys of the newest records
from this scan, and is kept if every group was certified and published.

If the map is too small for all keys, the keys and offsets are divided by
hash over a scratch file, and a map resolves one shard after another (`resolve.shards`); or the log is read in
several passes, each with a share of the hash range, if that moves fewer bytes (`resolve.whole.MapPlan`). The
bitmaps collect, and there is still one rewrite. Example, two segments, X marks dead:

    offset    0     1     2     3   |   4     5     6     7
    record   a=1   b=1   a=2   c=1  |  b=-   c=2   d=1   a=3        (b=- is a tombstone)
    dead      X     X     X     X   |   .     .     .     .
    after                           |  b=-   c=2   d=1   a=3        offsets stay, gaps are normal

A batch without a dead bit is copied byte for byte; a batch with dead bits only is skipped; a mixed one is cut
by record lengths. The last batch of each output stays, at least as an empty one (61 bytes): the file then
covers its range of offsets, for Kafka's recovery too. So does the last batch of each producer, which carries
its sequence, until the producer has been silent for `producer.id.expiration.ms`.

Survivors of neighbouring batches are joined, up to 32 KiB of uncompressed records: scattered over many small
batches, they would compress worse with every cleaning. Only batches that agree on everything that a batch
stores once for its records are joined (timestamp kind, leader epoch, codec, delete horizon), and never those
of producers, transactions or control records. `kernels/repack.py` has the rule.

Segments that are left alone
----------------------------

After the scan each segment's garbage is known exactly. A segment without a dead record, and without a
tombstone or a marker that needs a delete horizon, is not touched: a log of inserts is never rewritten, and
cold data is not copied because hot data changed. `groups` puts neighbours that are rewritten into one file
while they fit.

The life of a tombstone
-----------------------

    append       delete("b") is a record with a null value; it supersedes b's older records
    cleaning 1   it survives; its batch gets a delete horizon, now + delete.retention.ms: a reader in the
                 middle of the log has that long to read the delete. The horizon is written once, and never
                 moved
    cleaning n   now >= horizon: scan and rewrite drop it, with any older copy that is left

A horizon is set only on tombstones below the limit that are the newest record of their key. Older copies
leave the log in the same cleaning or before it, and swaps go in ascending order, so no reader can see the
old value after the horizon was set.

Leases
------

A horizon protects only readers that are fast enough. A reader that stops between a value and its tombstone,
and continues after the horizon, finds neither, and keeps the value for ever. So a reader may take a lease
(`partition.leases`): a tombstone at or above the lowest live position is not due, whatever its horizon.
Leases are read when a cleaning decides, and again right before each swap that drops a tombstone
(`lease_guard.py`): a lease that was taken in between stops the cleaning there.

Transactions
------------

    data T   data T   COMMIT T   data U   data U   ABORT U
    |-- committed ----------|      |-- aborted ----------|
    records like any other         dead from the start; they supersede nothing

The outcome of each batch is read from the log's own markers, in one walk over headers that is made when the
scan reads the first transaction. A transaction index that lost an entry costs no record.

A marker stays as long as a batch of its transaction is in the log, even an empty one. The first cleaning that
finds none gives the marker a delete horizon, and a later cleaning drops it. A marker that is the last batch
of its producer stays, whole: it holds the epoch. Index entries of aborted transactions stay as long as a
batch of the transaction.

Messages of magic 0 and 1
-------------------------

They keep their magic and codec: an uncompressed message is copied or dropped, a wrapper is cut inside. Two
things have no place in these formats:

- A delete horizon. The times of files replace it: a tombstone goes when an earlier cleaning has read it, and
  at least `delete.retention.ms` is between the last append to its segment and the last append to a cleaned
  segment. The last segment keeps its tombstones, so that consumers can reach the log's end.
- Empty batches. An output ends with its last survivor, and the next segment's base covers the rest.
  `partition.swap` explains why no crash then brings back deleted records.

The certificate
---------------

Before anything is published, the bytes that were appended to the new file are parsed again, as a reader of
the file would, and compared by computations without the bitmaps:

1. The scan kept a sum of H(key, offset) over live records: it added each record, and subtracted for each
   superseded record H(the newer record's key, the superseded offset). If two keys were mistaken for one, this
   sum is wrong. It must equal the sum over the new file.
2. The CRC of each survivor's bytes, with its offset and timestamp, summed over the sources, must equal the
   sum over the new file.
3. The fields that a batch stores once for its records (attributes, leader epoch, producer, epoch and
   sequence, delete horizon, and for a batch of a producer its offsets) are multiplied into the digests of
   these records: from the source's header, with the allowed changes, and from the header in the new file.
   Allowed changes: batches that agree on all of these fields are joined; a horizon is set where a tombstone
   or a marker begins to wait; a batch without records keeps its header, but no codec, horizon or base
   timestamp (and without a producer no largest timestamp); the base timestamp, which record timestamps make
   up for; the count. A last offset is that of a source's batch, a largest timestamp that of a record in the
   batch.
4. The transaction markers that must stay are in the new file, whole.
5. Offsets ascend to the end of the group's range, and the counts agree. The file has the size of the appended
   bytes.

The file is not read for this: the page cache would return the bytes that the append has just put there.

Every source batch has its CRC checked by scan and rewrite, so damage never gets a fresh checksum. If anything
fails, the outputs are removed, the sources stay unchanged, and the partition is quarantined, on disk, with
the reason.

The swap, and the state after a crash
-------------------------------------

`partition.swap` publishes one certified group at a time, lowest offsets first.

    crash during scan or rewrite        the log as it was; leftovers in <partition>/lastword/ are removed
                                        when the log is opened, and by the next cleaning
    crash within a swap                 opening the log finishes it or undoes it: old or new, never a mix
    crash between two swaps             a log with some groups clean: correct, only larger than it will be
    crash before the checkpoint         the same range is scanned again, and found clean

The first dirty offset is recorded after the last swap is durable, and only then.

Strategies
----------

Strategy `kafka` keeps no accounts of garbage between cleanings: each of its cleanings reads the log below its
limit once, which costs only time. Strategy `generational` (`liveness.KeptAccounts`) keeps and saves them.

In the background
-----------------

`background.scheduler` runs tasks on threads; `background.states` defines when a partition may be cleaned, and
`engine/throttle.py` limits the I/O of a drive. A caller that needs a partition (to trim, move, truncate or
delete it) does not wait for a cleaning: the cleaning ends at its next safe point, its unpublished files are
removed, and what it had published stays.
"""
