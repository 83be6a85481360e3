"""`lastword.pull`: copy topics of a Kafka cluster into a log directory, with their offsets.

```
client_config.py  properties of Java's clients and of librdkafka; TLS, credentials
cluster.py        a connection to one broker: versions, SASL, throttling; metadata of the cluster
pulls.py          `pull`: topics, settings, one thread for each leader, resume
leader.py         the partitions of one leader: checked against another log, fetched, appended
positions.py      committed offsets of groups, as records of `__consumer_offsets`
```

A partition is fetched as a follower fetches it: whole batches, with offsets, timestamps, producers, markers
and leader epochs, appended as they are (`PartitionLog.append_copies`). The progress of a pull is the log end
of the copy, and there is no other state: a pull that was killed goes on where the copy ends.
"""

from lastword.pulling.leader import PullResult
from lastword.pulling.pulls import pull

__all__ = ["PullResult", "pull"]
