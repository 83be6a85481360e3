"""What a Python worker of Spark keeps from task to task.

PySpark's daemon runs a full garbage collection in a worker after each task. It goes through every object
that is there, and with Numba and Arrow loaded these are 150,000: 90 ms of a core, where a small task of ours
takes one. Modules never go, so they are taken out of the collector's sight.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"

_known = 0


def settle() -> None:
    """To be called as a task begins: right after a collection, so nothing that is dead is kept. Does nothing
    but in a worker of the daemon, and there only when modules have been loaded since the last time. What is
    alive then is still freed by its reference count; only cycles among it would stay.
    """
    global _known
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    if program is None or program.name != DAEMON or len(sys.modules) <= _known:
        return
    _known = len(sys.modules)
    gc.freeze()
