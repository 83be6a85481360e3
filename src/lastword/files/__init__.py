"""All storage I/O.

`Files` (interface.py) is the interface that the rest of lastword uses: open, pread, append, fsync, fsync_dir,
rename, unlink, truncate, lock. `OsFiles` (real.py) implements it on the operating system, with few
descriptors (descriptors.py); failures.py turns a failed call into a typed error. lock.py holds the lock that
excludes other processes, a running Kafka included. scratch.py has files that are memory on a drive. Tests use
fakes that record calls, stop at a call, or drop all bytes that were not synced.

Start reading at interface.py: it states what each call promises, and what is durable when.
"""

from lastword.files.interface import (
    OVERLAP_FROM,
    OVERLAP_THREADS,
    DirVersion,
    FileFacts,
    Files,
    Handle,
    Steps,
    Syncs,
    WouldWait,
    normal_path,
    overlapped,
    real_path,
    run_steps,
    run_together,
    sync_along,
)
from lastword.files.lock import FileLock
from lastword.files.real import OsFiles

DEFAULT: Files = OsFiles()

__all__ = [
    "DEFAULT",
    "OVERLAP_FROM",
    "OVERLAP_THREADS",
    "DirVersion",
    "FileFacts",
    "FileLock",
    "Files",
    "Handle",
    "OsFiles",
    "Steps",
    "Syncs",
    "WouldWait",
    "normal_path",
    "overlapped",
    "real_path",
    "run_steps",
    "run_together",
    "sync_along",
]
