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

if TYPE_CHECKING:  # `as`: a name that is exported
    from lastword import errors as errors
    from lastword import metrics as metrics
    from lastword import spark as spark
    from lastword import testing as testing
    from lastword.api.aio import AsyncLogDir as AsyncLogDir
    from lastword.api.aio import AsyncReader as AsyncReader
    from lastword.api.aio import AsyncState as AsyncState
    from lastword.api.aio import AsyncTopic as AsyncTopic
    from lastword.api.aio import AsyncTransaction as AsyncTransaction
    from lastword.api.aio import aopen as aopen
    from lastword.api.cleaner import Cleaner as Cleaner
    from lastword.api.copying import CopyResult as CopyResult
    from lastword.api.copying import copy as copy
    from lastword.api.inspections import PartitionInfo as PartitionInfo
    from lastword.api.inspections import SegmentInfo as SegmentInfo
    from lastword.api.lease import Lease as Lease
    from lastword.api.lease import LeaseInfo as LeaseInfo
    from lastword.api.logs import LogDir as LogDir
    from lastword.api.open_transactions import OpenTransaction as OpenTransaction
    from lastword.api.opening import open as open
    from lastword.api.reader import Reader as Reader
    from lastword.api.record import ABSENT as ABSENT
    from lastword.api.record import Appended as Appended
    from lastword.api.record import Record as Record
    from lastword.api.restore import Restored as Restored
    from lastword.api.serializers import Serializers as Serializers
    from lastword.api.serializers import serializers as serializers
    from lastword.api.state import State as State
    from lastword.api.topic import Topic as Topic
    from lastword.api.transaction import Transaction as Transaction
    from lastword.api.watch import Watch as Watch
    from lastword.bucket.collect import Collection as Collection
    from lastword.cleaner.engine.report import CleanRound as CleanRound
    from lastword.cleaner.policy.plan import Plan as Plan
    from lastword.lake.export import Exported as Exported
    from lastword.pulling.leader import PullResult as PullResult
    from lastword.pulling.pulls import pull as pull
    from lastword.retention import Deletion as Deletion
    from lastword.server import Server as Server
    from lastword.server import serve as serve
    from lastword.tools.audit import Audit as Audit
    from lastword.tools.dump import dump as dump
    from lastword.tools.duplication import Duplication as Duplication
    from lastword.tools.erasure import CertificateCheck as CertificateCheck
    from lastword.tools.erasure import Erasure as Erasure
    from lastword.tools.explain import Explanation as Explanation
    from lastword.tools.explain import Version as Version
    from lastword.tools.simulate import Simulation as Simulation
    from lastword.tools.verify import Verification as Verification
    from lastword.values import Progress as Progress

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
    __all__ = sorted([*_HOMES, *_MODULES])

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
            if gc.get_freeze_count() < 1000:  # Python 3.12.1 starts with 375; a caller freezes more
                # The oldest generation takes all objects, or the next young collections would go through
                # these, for a tenth of the time of a short process.
                gc.freeze()
                gc.unfreeze()
            if collects:
                gc.enable()
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_MODULES, "__version__"])
