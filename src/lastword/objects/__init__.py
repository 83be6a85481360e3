"""Object storage: S3, GCS, Azure, and a store in memory.

`ObjectStore` (interface.py) is the interface that the rest of lastword uses: get, put, create-only writes,
compare-and-swap, list, delete. `RemoteStore` (remote.py) implements it with the library obstore; failures.py
turns a failed request into a typed error without credentials; `probe` checks a store before a process writes
there. Tests use a fake that fails, delays and reorders requests.

Start reading at interface.py: it states what each request promises, and which errors leave its effect open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.objects.interface import (
    Buffer,
    ObjectFacts,
    ObjectStore,
    ObjectVersion,
    StoredObject,
    is_secret,
    is_url,
)
from lastword.objects.probe import Probe, probe

if TYPE_CHECKING:
    from lastword.objects.remote import open_store

__all__ = [
    "Buffer",
    "ObjectFacts",
    "ObjectStore",
    "ObjectVersion",
    "Probe",
    "StoredObject",
    "is_secret",
    "is_url",
    "open_store",
    "probe",
]

if not TYPE_CHECKING:  # every command checks whether a path is a URL, and few open one

    def __getattr__(name: str) -> Any:
        if name != "open_store":
            raise AttributeError(f"module 'lastword.objects' has no attribute {name!r}")
        from lastword.objects.remote import open_store

        globals()[name] = open_store
        return open_store
