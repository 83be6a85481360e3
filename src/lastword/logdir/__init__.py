"""Directories of topic partitions, as a broker keeps them.

Stands on `partition` and `accounts`. `log_dir.py` opens a directory, to read without a lock or to append with
Kafka's lock. `open_partitions.py` holds the open logs, their locks and gauges. `checkpoints.py` and
`identity.py` are the small files of the directory. `topics.py` lists, makes and deletes the partitions of
a root. `log_dir_set.py` makes one directory of several, and moves partitions between them. `ledgers.py` keeps
the garbage accounts of all partitions within their memory. Start reading at log_dir.py.
"""

from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.log_dir_set import LogDirSet, move
from lastword.logdir.open_partitions import DirRecovery
from lastword.logdir.topics import SetAside

__all__ = ["DirRecovery", "LogDirSet", "LogDirectory", "SetAside", "TopicPartition", "move"]
