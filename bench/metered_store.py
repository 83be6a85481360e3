"""`MeteredStore`: a store that counts requests and bytes, and may simulate a network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from lastword.objects import Buffer, ObjectFacts, ObjectStore, ObjectVersion, StoredObject
from lastword.objects.interface import PART_BYTES, SINGLE_BYTES

T = TypeVar("T")
KEYS_PER_REQUEST = 1000  # of a list, and of a delete
READS = frozenset({"get", "range", "facts"})
FREE = frozenset({"delete"})
WRITE_DOLLARS, READ_DOLLARS = 5.0e-6, 0.4e-6  # a request: S3 Standard, US East; docs/bucket.md has the date


@dataclass(frozen=True)
class Usage:
    """Requests by class of price, and bytes."""

    writes: int
    reads: int
    sent: int
    received: int

    @property
    def dollars(self) -> float:
        """List price of the requests."""
        return self.writes * WRITE_DOLLARS + self.reads * READ_DOLLARS


class MeteredStore(ObjectStore):
    """Counts the requests to a store by kind, with their bytes, as S3 counts them.

    Args:
        store: The store.
        request_seconds: Time from a request to the first byte of its answer.
        bytes_per_second: Bandwidth of one connection; 0: not limited. Each request has a connection of its
            own.
    """

    def __init__(
        self, store: ObjectStore, *, request_seconds: float = 0.0, bytes_per_second: float = 0.0
    ) -> None:
        self.url = store.url
        self.request_seconds = request_seconds
        self.bytes_per_second = bytes_per_second
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.under_way = 0
        self.most_under_way = 0
        self._store = store
        self._lock = Lock()

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            for counter in (self.requests, self.sent, self.received):
                counter.clear()
            self.most_under_way = 0

    def usage(self) -> Usage:
        """Return what was counted: writes, creates, swaps and lists have one price, reads another."""
        reads = sum(self.requests[kind] for kind in READS)
        writes = sum(number for kind, number in self.requests.items() if kind not in READS | FREE)
        return Usage(writes, reads, sum(self.sent.values()), sum(self.received.values()))

    def _call(
        self,
        kind: str,
        request: Callable[[], T],
        *,
        sent: int = 0,
        received: int | None = None,
        requests: int = 1,
    ) -> T:
        if kind == "put" and sent > SINGLE_BYTES:  # a request for each part, one to begin and one to complete
            requests = -(-sent // PART_BYTES) + 2
        with self._lock:
            self.requests[kind] += requests
            self.sent[kind] += sent
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        started = time.perf_counter()
        try:
            result = request()
            size = received if received is not None else _size(result)
            with self._lock:
                self.received[kind] += size
            seconds = self.request_seconds
            if self.bytes_per_second:
                seconds += (sent + size) / self.bytes_per_second
            left = seconds - (time.perf_counter() - started)
            if left > 0:
                time.sleep(left)
            return result
        finally:
            with self._lock:
                self.under_way -= 1

    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        return self._call("get", lambda: self._store.get(key, unless=unless))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        return self._call("range", lambda: self._store.get_range(key, start, size), received=size)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        parts: Sequence[Buffer] = data if isinstance(data, list | tuple) else [data]
        sent = sum(len(memoryview(part).cast("B")) for part in parts)
        self._call("put", lambda: self._store.put(key, data), sent=sent)

    def put_file(self, key: str, path: str) -> None:
        self._call("put", lambda: self._store.put_file(key, path), sent=Path(path).stat().st_size)

    def create(self, key: str, data: Buffer) -> ObjectVersion:
        return self._call("create", lambda: self._store.create(key, data), sent=memoryview(data).nbytes)

    def swap(self, key: str, data: Buffer, version: ObjectVersion) -> ObjectVersion:
        return self._call("swap", lambda: self._store.swap(key, data, version), sent=memoryview(data).nbytes)

    def facts(self, key: str) -> ObjectFacts | None:
        return self._call("facts", lambda: self._store.facts(key))

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        keys = list(self._store.list(prefix))
        return iter(self._call("list", lambda: keys, requests=max(1, -(-len(keys) // KEYS_PER_REQUEST))))

    def delete(self, keys: Sequence[str]) -> None:
        requests = -(-len(keys) // KEYS_PER_REQUEST)
        self._call("delete", lambda: self._store.delete(keys), requests=requests)

    def close(self) -> None:
        self._store.close()


def _size(result: Any) -> int:
    return len(result.data) if isinstance(result, StoredObject) else 0
