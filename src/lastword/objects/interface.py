"""The interface to object storage: an `ObjectStore` reads, writes and lists objects below one URL.

Promises, which every store that `probe` accepts must keep:

1. An object is written whole or not at all. When `put`, `put_file`, `create` or `swap` returns, every later
   `get`, `facts` and `list` shows the object (strong consistency).
2. `create` succeeds only if the key has no object; `swap` only if the object has the given version. The check
   and the write are one step for the store.
3. `UncertainRequestError` of a write means that the write may have taken effect, may take effect later, or
   never. The caller reads the object to decide. `ObjectTakenError` and `SwapRefusedError` may have an earlier
   attempt of the caller as their cause, so a caller that repeats a write reads the object after them too.
   Every other error of a write means that the write had no effect.
4. `modified_ms` is from the store's clock. Some stores round it down to a second in some replies.

Methods may be called from several threads at the same time.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from lastword.units import MIB

PART_BYTES = 16 * MIB
SINGLE_BYTES = 16 * MIB
"""Larger objects are sent in parts of `PART_BYTES`, with two requests more. A smaller object takes one
request, and its buffer is not copied."""

Buffer = Any
"""Bytes-like: bytes, bytearray, memoryview or a contiguous NumPy array."""

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"key|token|secret|password|signature|credential|sas|proxy_url", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Return whether `path` is a URL and not a path of a file system."""
    return URL.match(path) is not None


def is_secret(option: str) -> bool:
    """Return whether the value of a storage option, or of a variable of the environment, may be a secret."""
    return _SECRET.search(option) is not None


class ObjectFacts(NamedTuple):
    """Facts of an object.

    Attributes:
        key: The name, relative to the store's URL.
        size: Bytes.
        modified_ms: When the object was written, by the store's clock.
    """

    key: str
    size: int  # bytes
    modified_ms: int


class ObjectVersion(NamedTuple):
    """The version of an object. Opaque: only a store reads the two fields."""

    etag: str | None
    version: str | None


class StoredObject(NamedTuple):
    """An object as it was read: content, version, and when it was written by the store's clock."""

    data: bytes
    version: ObjectVersion
    modified_ms: int


class ObjectStore(ABC):
    """Objects below one URL; also a context manager. Keys are relative to the URL and have no leading slash.

    All methods raise `UncertainRequestError` if the store does not answer or answers with a server error,
    `ThrottledError` (a subclass) if it limits the rate, `CredentialsRefusedError`, `BucketMissingError`, and
    `NotPermittedError` if the credentials do not allow the request.
    """

    url: str
    """Where the objects are, without credentials and without a slash at the end."""
    commit_attempts: int | None = None
    """How often a commit is tried while others come first; None: the default."""

    @abstractmethod
    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        """Read a whole object; None if it still has the version `unless`.

        Raises:
            ObjectVanishedError: There is no such object.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Read exactly `size` bytes from position `start`, as a buffer that never changes.

        Raises:
            ObjectVanishedError: There is no such object.
            TruncatedObjectError: The object ends before.
        """

    @abstractmethod
    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write an object under a name that was never used; buffers of a list or tuple are joined.

        Large objects are sent in parts. The request may be repeated, so the same name must never get other
        content.
        """

    @abstractmethod
    def put_file(self, key: str, path: str) -> None:
        """Write an object from a local file, as `put` does, in bounded memory."""

    @abstractmethod
    def create(self, key: str, data: Buffer) -> ObjectVersion:
        """Write an object only if there is none of this name. Sends one request, without a repetition.

        Raises:
            ObjectTakenError: There is an object of this name.
        """

    @abstractmethod
    def swap(self, key: str, data: Buffer, version: ObjectVersion) -> ObjectVersion:
        """Replace an object only if it has `version`. Sends one request, without a repetition.

        Raises:
            SwapRefusedError: The object has another version, or there is none.
        """

    @abstractmethod
    def facts(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object; None if there is none."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Return the objects below a folder, with or without a slash at its end, in no certain order.

        `list("a/b")` has `a/b/c` and `a/b/c/d`, but neither `a/b` nor `a/bc`. Objects that are written or
        deleted meanwhile may be there or not.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is no error."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections; a second close does nothing."""

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
