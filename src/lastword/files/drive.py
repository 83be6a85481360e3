"""Sync a whole file system with one call, `syncfs`: many files that were written together become durable.

It takes the place of the syncs of single files where it promises as much as they do:

* Linux 5.8 or later. Earlier kernels report no page that could not be written.
* ext4, XFS or Btrfs. A file system on a network or in a user's process may leave bytes at its server.
* The descriptor was opened before the writes (it is that of the directory's lock). Then the kernel reports a
  failure to it that it has reported to another process before.
* At most MOST_WAITING_BYTES wait to be written on this machine, because the call waits for the bytes of other
  programs, too.

A failure is not final: each file is then synced by itself, and reports whether it failed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

SUPPORTED_TYPES = frozenset({0xEF53, 0x58465342, 0x9123683E})
"""The numbers of ext4, XFS and Btrfs in `statfs`."""
REPORTS_FAILURES = (5, 8)
MOST_WAITING_BYTES = 256 << 20
_STATFS_BYTES = 256  # more than any `struct statfs`; its first word is the type


def sync_drive(fd: int) -> bool:
    """Sync everything that was written to a descriptor's file system so far.

    Returns:
        Whether it is durable. False: nothing is promised.
    """
    syncfs = _syncfs()
    if syncfs is None or _type_of(fd) not in SUPPORTED_TYPES or waiting_bytes() > MOST_WAITING_BYTES:
        return False
    return syncfs(fd) == 0


@cache
def libc() -> Any:
    """Return the C library of this process."""
    import ctypes

    return ctypes.CDLL(None)


@cache
def _syncfs() -> Callable[[int], int] | None:
    """Return the function of the C library; None if this kernel would not report failures."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < REPORTS_FAILURES:
        return None
    return getattr(libc(), "syncfs", None)


def _type_of(fd: int) -> int:
    """Return the type of a descriptor's file system, as a number of `statfs`; 0 if it is not known."""
    import ctypes

    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc().fstatfs(fd, facts) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(facts).value & 0xFFFFFFFF


def waiting_bytes() -> int:
    """Return the bytes of files that are not yet written to a drive, on the whole machine; 0: not known."""
    with suppress(OSError), open("/proc/meminfo", "rb") as file:
        counts = re.findall(rb"^(?:Dirty|Writeback):\s+(\d+) kB", file.read(4096), re.MULTILINE)
        return sum(map(int, counts)) << 10
    return 0
