"""Kafka's protocol over a log directory: `serve`.

```
server.py    sockets, one event loop in its own thread, order and backpressure of each connection; `serve`
security.py  users with passwords (SASL), and TLS
node.py      which API has which handler
context.py   `ServerContext`, what the handlers share: loop, threads, clock, topics, options, memory
admin.py     metadata, topics, partitions, log directories, producers
groups.py    groups: loaded, listed, deleted
group_store.py  groups by id; each change is a record
offsets.py   committed offsets
classic_groups.py   groups of the classic protocol
consumer_groups.py  groups of the protocol of KIP-848
assignors.py  which member of such a group reads which partitions
group_leases.py     leases at committed offsets, which keep tombstones
coordinator.py  the topic that holds a coordinator's state
timers.py    timers by the clock of the log
topics.py    the topics by name and by id
constants.py answers for what a single node does not have: ACLs, quotas, reassignments, elections
configs.py   DescribeConfigs and the three ways to change settings, with Kafka's names and defaults
produce.py   Produce: a batch is verified and appended as it is
transactions.py  the transaction coordinator: InitProducerId, transactional ids, their ends
markers.py   the markers of transactions
newest.py    `<topic>@newest`: the newest record of each key
fetch.py     Fetch with its sessions and long polls, ListOffsets, OffsetForLeaderEpoch, DeleteRecords
```

A request becomes a message in `protocol`, a handler of the `ClusterNode` returns the message that answers it,
or a future of it, and the connection sends the parts of the answer. A connection has one request in work, as
in Kafka: the order of its appends and of its answers is the order of its requests.

Handlers run in the thread of the event loop. Work that waits for a drive (a sync, a topic that is made, the
recovery of a partition) or that handles much data runs in a small pool of threads. No handler touches a
record: batches are verified by their header and checksum, and sent from the file that holds them.
"""

from lastword.server.server import Server, serve

__all__ = ["Server", "serve"]
