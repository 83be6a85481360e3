"""Object storage: S3, GCS, Azure, and a store in memory.

`ObjectStore` (interface.py) is the interface that the rest of lastword uses: get, put, create-only writes,
compare-and-swap, list, delete. `RemoteStore` (remote.py) implements it with the library obstore; failures.py
turns a failed request into a typed error without credentials; `probe` checks a store before a process writes
there. Tests use a fake that fails, delays and reorders requests.

Start reading at interface.py: it states what each request promises, and which errors leave its effect open.
"""

from lastword.objects.interface import Buffer, ObjectFacts, ObjectStore, Stored, Version
from lastword.objects.probe import Probe, probe
from lastword.objects.remote import is_secret, is_url, open_store

__all__ = [
    "Buffer",
    "ObjectFacts",
    "ObjectStore",
    "Probe",
    "Stored",
    "Version",
    "is_secret",
    "is_url",
    "open_store",
    "probe",
]
