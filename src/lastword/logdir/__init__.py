"""A directory of topic partitions, as a broker keeps it.

Stands on `partition`. `log_dir.py` opens one, to read without a lock or to append with Kafka's;
`open_partitions.py` holds the logs that are open, `bounds.py` moves where they start, end and are clean to;
`discover.py` says what in a root is a partition; `checkpoints.py` and `identity.py` are the small files
around them.
`spread.py` makes one of several directories, `move.py` takes a partition from one to another. `ledgers.py`
keeps the garbage accounts of all partitions within their memory. Start reading at log_dir.py.
"""

from lastword.logdir.checkpoints import Checkpoints, TopicPartition
from lastword.logdir.discover import SetAside
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.log_dir_set import LogDirSet
from lastword.logdir.move import move
from lastword.logdir.open_partitions import DirRecovery
from lastword.logdir.topics import partition_numbers

__all__ = [
    "Checkpoints",
    "DirRecovery",
    "LogDirSet",
    "LogDirectory",
    "SetAside",
    "TopicPartition",
    "move",
    "partition_numbers",
]
