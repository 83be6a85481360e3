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
    from lastword.api.aio import AsyncLogDir, AsyncReader, AsyncState, AsyncTopic, AsyncTransaction, aopen
    from lastword.api.cleaner import Cleaner
    from lastword.api.copying import CopyResult, copy
    from lastword.api.inspections import PartitionInfo, SegmentInfo
    from lastword.api.lease import Lease, LeaseInfo
    from lastword.api.logs import LogDir
    from lastword.api.open_transactions import OpenTransaction
    from lastword.api.opening import open
    from lastword.api.reader import Reader
    from lastword.api.record import ABSENT, Appended, Record
    from lastword.api.restore import Restored
    from lastword.api.serializers import Serializers, serializers
    from lastword.api.state import State
    from lastword.api.topic import Topic
    from lastword.api.transaction import Transaction
    from lastword.api.watch import Watch
    from lastword.bucket.collect import Collection
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.policy.plan import Plan
    from lastword.lake.export import Exported
    from lastword.pulling.leader import PullResult
    from lastword.pulling.pulls import pull
    from lastword.retention import Deletion
    from lastword.server import Server, serve
    from lastword.tools.audit import Audit
    from lastword.tools.dump import dump
    from lastword.tools.duplication import Duplication
    from lastword.tools.erasure import CertificateCheck, Erasure
    from lastword.tools.explain import Explanation, Version
    from lastword.tools.simulate import Simulation
    from lastword.tools.verify import Verification
    from lastword.values import Progress

__all__ = [
    "ABSENT",
    "Appended",
    "AsyncLogDir",
    "AsyncReader",
    "AsyncState",
    "AsyncTopic",
    "AsyncTransaction",
    "Audit",
    "CertificateCheck",
    "CleanRound",
    "Cleaner",
    "Collection",
    "CopyResult",
    "Deletion",
    "Duplication",
    "Erasure",
    "Explanation",
    "Exported",
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
    "Transaction",
    "Verification",
    "Version",
    "Watch",
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

_NAMES = {
    "api.aio": ("AsyncLogDir", "AsyncReader", "AsyncState", "AsyncTopic", "AsyncTransaction", "aopen"),
    "api.cleaner": ("Cleaner",),
    "api.copying": ("CopyResult", "copy"),
    "api.inspections": ("PartitionInfo", "SegmentInfo"),
    "api.lease": ("Lease", "LeaseInfo"),
    "api.logs": ("LogDir",),
    "api.opening": ("open",),
    "api.reader": ("Reader",),
    "api.record": ("ABSENT", "Appended", "Record"),
    "api.restore": ("Restored",),
    "api.serializers": ("Serializers", "serializers"),
    "api.state": ("State",),
    "api.topic": ("Topic",),
    "api.transaction": ("Transaction",),
    "api.open_transactions": ("OpenTransaction",),
    "api.watch": ("Watch",),
    "bucket.collect": ("Collection",),
    "cleaner.engine.report": ("CleanRound",),
    "cleaner.policy.plan": ("Plan",),
    "lake.export": ("Exported",),
    "pulling.leader": ("PullResult",),
    "pulling.pulls": ("pull",),
    "retention": ("Deletion",),
    "server": ("Server", "serve"),
    "tools.audit": ("Audit",),
    "tools.dump": ("dump",),
    "tools.duplication": ("Duplication",),
    "tools.erasure": ("CertificateCheck", "Erasure"),
    "tools.explain": ("Explanation", "Version"),
    "tools.simulate": ("Simulation",),
    "tools.verify": ("Verification",),
    "values": ("Progress",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
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
            if gc.get_freeze_count() == 0:
                # The oldest generation takes all objects, or the next young collections would go through
                # these, for a tenth of the time of a short process.
                gc.freeze()
                gc.unfreeze()
            if collects:
                gc.enable()
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
