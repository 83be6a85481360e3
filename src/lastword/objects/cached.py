"""`CachedRanges`: small ranges of objects in a local directory, for the next process that reads them.

Only ranges of objects that never change may be kept: those have random names in a log. A file is a range and
a checksum, under the digest of its name; it is written under a temporary name and renamed. So several
processes share a directory, and its files may be removed at any time. A file that is damaged or too short
counts as absent.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from lastword.errors import InvalidSettingError
from lastword.units import MIB

DEFAULT_BYTES = 1024 * MIB
LEAST_BYTES = 16 * MIB
MOST_RANGE_BYTES = MIB - 1
"""Larger ranges are those of scans, which read each segment once."""
PARTS = 8
"""A process lists the directory when it has added this part of the limit, and removes the oldest files."""
CHECKSUM_BYTES = 4
_NAME = re.compile(r"[0-9a-f]{32}(\.\d+-\d+)?")
"""The names of our files. Others are never removed: a user may name a directory that has files."""


class CachedRanges:
    """Ranges in a directory.

    Args:
        directory: It is made if it is absent.
        limit_bytes: The files of the directory may have this size, and an eighth of it more for each process
            that writes beside others.

    Raises:
        InvalidSettingError: The directory cannot be made or written.
    """

    def __init__(self, directory: str, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._directory = Path(directory)
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._added_bytes = limit_bytes  # so the first range that is kept lists the directory
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            usable = os.access(self._directory, os.W_OK | os.X_OK)
        except OSError:
            usable = False
        if not usable:
            raise InvalidSettingError(
                f"storage option cache: {directory} is no directory that can be written",
                remedy="name a directory of this machine for it alone, or omit the option",
                file=directory,
            )

    def get(self, name: str, size: int) -> memoryview | None:
        """Return a range of `size` bytes; None if it is not here."""
        path = self._path(name)
        try:
            content = path.read_bytes()
            os.utime(path)  # the file was used: others are removed first
        except OSError:
            return None
        data = memoryview(content)[:-CHECKSUM_BYTES]
        if len(data) != size or content[-CHECKSUM_BYTES:] != _checksum(name, data):
            return None
        return data

    def keep(self, name: str, data: bytes | memoryview) -> None:
        """Keep a range. If the drive refuses, nothing happens: the next reader takes it from the store."""
        path = self._path(name)
        temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.write(_checksum(name, data))
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        with self._lock:
            self._added_bytes += len(data) + CHECKSUM_BYTES
            if self._added_bytes >= self._limit_bytes // PARTS:
                self._added_bytes = 0
                self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = sorted(self._files())
        excess = sum(size for _, size, _ in files) - self._limit_bytes * (PARTS - 1) // PARTS
        for _, size, path in files:
            if excess <= 0:
                break
            try:
                Path(path).unlink(missing_ok=True)
            except OSError:
                continue
            excess -= size

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield the time of the last use, the size and the path of each file."""
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name) is None:
                        continue
                    try:
                        facts = entry.stat(follow_symlinks=False)
                    except OSError:  # another process removed it
                        continue
                    yield facts.st_mtime_ns, facts.st_size, entry.path
        except OSError:
            return

    def _path(self, name: str) -> Path:
        return self._directory / blake2b(name.encode(), digest_size=16).hexdigest()


def _checksum(name: str, data: bytes | memoryview) -> bytes:
    return zlib.crc32(data, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "big")
