"""All storage I/O, through one small object.

`Files` (interface.py) is what the rest of lastword sees: open, pread, append, fsync, fsync_dir, rename,
unlink, truncate, lock. `OsFiles` (real.py) and its handles (handle.py) do it on the operating system;
failures.py tells what a failed call means. Tests put fakes under everything that record, stop, or forget.
The lock that excludes other processes, a running Kafka too, is in lock.py.

Start reading at interface.py: it says what each call promises, above all what is durable when.
"""

from lastword.files.interface import FileFacts, Files, Handle
from lastword.files.lock import FileLock
from lastword.files.real import OsFiles

DEFAULT: Files = OsFiles()

__all__ = ["DEFAULT", "FileFacts", "FileLock", "Files", "Handle", "OsFiles"]
