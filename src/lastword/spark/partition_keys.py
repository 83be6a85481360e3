"""The partition of many keys at once, for the sink's tasks: the same answers as `api.partitioners`.

A topic of one partition, and keys that were given a partition by a column, never come here.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from lastword.api.partitioners import murmur2_partitions
from lastword.errors import SparkOptionError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BULK = ("murmur2", "crc32")


def partitions_of(keys: pa.Array, partitions: int, partitioner: str) -> np.ndarray:
    """int64 partition of each key of a binary array without nulls.

    Only the named partitioners are known here: a callable of the topic's creator cannot travel to tasks, so
    such a topic needs a column `partition`.
    """
    import numpy as np

    if partitioner not in BULK:
        raise SparkOptionError(
            f"the topic's partitioner {partitioner!r} is a function that tasks do not have",
            remedy="give the frame a column `partition`",
        )
    if partitions == 1 or len(keys) == 0:
        return np.zeros(len(keys), np.int64)
    if partitioner == "crc32":
        return np.fromiter((zlib.crc32(key.as_py()) % partitions for key in keys), np.int64, len(keys))
    return murmur2_partitions(keys, partitions)
