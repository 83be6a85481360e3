"""A keyed, compacted commit log for Python and Spark. Its bytes are Kafka's.

    import lastword

    with lastword.open("data", "a") as logs:
        users = logs.state("users")
        users["ada"] = {"city": "Turin"}

Start reading at `open`, then `LogDir`, `Topic`, `State`. A name is loaded at its first use, so this import is
cheap; kernels, Arrow and Spark are loaded only by calls that need them.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from lastword.version import __version__ as __version__

if TYPE_CHECKING:
    from lastword import errors, metrics, spark, testing
    from lastword.api.aio import AsyncLogDir, AsyncReader, AsyncState, AsyncTopic, aopen
    from lastword.api.cleaner import Cleaner
    from lastword.api.copying import CopyResult, copy
    from lastword.api.inspections import PartitionInfo, SegmentInfo
    from lastword.api.lease import Lease, LeaseInfo
    from lastword.api.logs import LogDir
    from lastword.api.opening import open
    from lastword.api.reader import Reader
    from lastword.api.record import Appended, Record
    from lastword.api.restore import Restored
    from lastword.api.serializers import Serializers, serializers
    from lastword.api.state import State
    from lastword.api.topic import Topic
    from lastword.api.transactions import OpenTransaction
    from lastword.bucket.collect import Collection
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.policy.plan import Plan
    from lastword.pulling.leader import PullResult
    from lastword.pulling.pulls import pull
    from lastword.retention import Deletion
    from lastword.server import Server, serve
    from lastword.tools.audit import Audit
    from lastword.tools.dump import dump
    from lastword.tools.duplication import Duplication
    from lastword.tools.explain import Explanation, Version
    from lastword.tools.simulate import Simulation
    from lastword.tools.verify import Verification
    from lastword.values import Progress

__all__ = [
    "Appended",
    "AsyncLogDir",
    "AsyncReader",
    "AsyncState",
    "AsyncTopic",
    "Audit",
    "CleanRound",
    "Cleaner",
    "Collection",
    "CopyResult",
    "Deletion",
    "Duplication",
    "Explanation",
    "Lease",
    "LeaseInfo",
    "LogDir",
    "OpenTransaction",
    "PartitionInfo",
    "Plan",
    "Progress",
    "PullResult",
    "Reader",
    "Record",
    "Restored",
    "SegmentInfo",
    "Serializers",
    "Server",
    "Simulation",
    "State",
    "Topic",
    "Verification",
    "Version",
    "aopen",
    "copy",
    "dump",
    "errors",
    "metrics",
    "open",
    "pull",
    "serializers",
    "serve",
    "spark",
    "testing",
]

_HOMES = {
    "Appended": "api.record",
    "AsyncLogDir": "api.aio",
    "AsyncReader": "api.aio",
    "AsyncState": "api.aio",
    "AsyncTopic": "api.aio",
    "Audit": "tools.audit",
    "CleanRound": "cleaner.engine.report",
    "Cleaner": "api.cleaner",
    "Collection": "bucket.collect",
    "CopyResult": "api.copying",
    "Deletion": "retention",
    "Duplication": "tools.duplication",
    "Explanation": "tools.explain",
    "Lease": "api.lease",
    "LeaseInfo": "api.lease",
    "LogDir": "api.logs",
    "OpenTransaction": "api.transactions",
    "PartitionInfo": "api.inspections",
    "Plan": "cleaner.policy.plan",
    "Progress": "values",
    "PullResult": "pulling.leader",
    "Reader": "api.reader",
    "Record": "api.record",
    "Restored": "api.restore",
    "SegmentInfo": "api.inspections",
    "Serializers": "api.serializers",
    "Server": "server",
    "Simulation": "tools.simulate",
    "State": "api.state",
    "Topic": "api.topic",
    "Verification": "tools.verify",
    "Version": "tools.explain",
    "aopen": "api.aio",
    "copy": "api.copying",
    "dump": "tools.dump",
    "open": "api.opening",
    "pull": "pulling.pulls",
    "serializers": "api.serializers",
    "serve": "server",
}
_MODULES = ("errors", "metrics", "spark", "testing")


if not TYPE_CHECKING:  # a type checker would take every typo for a name of this module

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"lastword.{name}")
        module = _HOMES.get(name)
        if module is None:
            raise AttributeError(f"module 'lastword' has no attribute {name!r}")
        collects = gc.isenabled()
        gc.disable()  # modules stay: collections would take a sixth of the time, and find nothing
        try:
            value = getattr(importlib.import_module(f"lastword.{module}"), name)
        finally:
            if collects:
                gc.enable()
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
