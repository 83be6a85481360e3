"""Object storage that fails on purpose: `Bucket` holds the objects, each `FakeStore` is one process on it.

The conditions of creates and swaps are exact and atomic. Before each request of a `FakeStore`:

1. `before(request)` runs, outside of every lock: a test lets other processes take their steps there.
2. `faults(request)` chooses a `Fault`, or None: `Planned` by the request's number, `Seeded` by chance.

`Bucket` has a clock of its own, a log of all requests, and counters of requests and bytes by kind. Its
`weaknesses` are faults of a whole store, which the code above must find or withstand.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from lastword.clock import ManualClock
from lastword.errors import (
    LastwordError,
    ObjectTakenError,
    ObjectVanishedError,
    SwapRefusedError,
    ThrottledError,
    TruncatedObjectError,
    UncertainRequestError,
)
from lastword.objects import Buffer, ObjectFacts, ObjectStore, ObjectVersion, StoredObject

T = TypeVar("T")
PART_BYTES = 8 << 20  # larger objects are sent in parts: a request for each, one to begin and one to complete


class Fault(Enum):
    """What happens to one request."""

    REFUSED = "a server error; no effect"
    THROTTLED = "the store limits the rate; no effect"
    LOST = "the effect, but no reply"
    LATE = "no reply, and the effect when the store's clock has moved on; its condition is checked then"
    REPEATED = "the effect, then the refusal that a repetition of the same write gets"
    SHORT = "a range with too few bytes"
    TORN = "the first half of the object as it was before, then bytes of now; with the version of now"
    STOP_BEFORE = "the process ends; no effect"
    STOP_AFTER = "the effect, then the process ends"
    STOP_LATE = "the process ends, and the effect is late"


_STOPS = frozenset({Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.STOP_LATE})
_LATE = frozenset({Fault.LATE, Fault.STOP_LATE})
_NO_EFFECT = frozenset({Fault.REFUSED, Fault.THROTTLED, Fault.STOP_BEFORE})
_READ = (Fault.REFUSED, Fault.THROTTLED, Fault.STOP_BEFORE)
_WRITE = (*_READ, Fault.LOST, Fault.LATE, Fault.STOP_AFTER, Fault.STOP_LATE)
POSSIBLE: Mapping[str, tuple[Fault, ...]] = {
    "get": (*_READ, Fault.TORN),
    "range": (*_READ, Fault.SHORT),
    "facts": _READ,
    "list": _READ,
    "put": _WRITE,
    "delete": _WRITE,
    "create": (*_WRITE, Fault.REPEATED),
    "swap": (*_WRITE, Fault.REPEATED),
}
"""The faults of each kind of request."""


class Weakness(Enum):
    """What a store does wrong, always."""

    IGNORES_CREATE = "a create replaces an object"
    IGNORES_SWAP = "a swap replaces every version, and writes an object that is missing"
    TWO_STEPS = "a condition is checked before the requests that others send until the write"
    DIGEST_ETAGS = "equal content has an equal version, so that an older version can be current again"


class Stopped(BaseException):
    """The process has ended. No code under test catches this class."""


@dataclass(slots=True)
class Request:
    """One request. `outcome` is "ok", the name of an error, or the name of a fault."""

    process: str
    number: int  # of the requests of this process, from 1
    kind: str
    keys: tuple[str, ...]
    outcome: str = ""

    @property
    def key(self) -> str:
        return self.keys[0]


Faults = Callable[[Request], Fault | None]


class Planned:
    """Faults by the number of the request; numbers count from 1."""

    def __init__(self, plan: Mapping[int, Fault]) -> None:
        self.plan = plan

    def __call__(self, request: Request) -> Fault | None:
        return self.plan.get(request.number)


class Seeded:
    """Faults by chance: `rate` of the requests have one of `faults`, if it is possible for their kind."""

    def __init__(self, random: Random, rate: float, faults: Sequence[Fault] = tuple(Fault)) -> None:
        self.random = random
        self.rate = rate
        self.possible = {kind: [f for f in faults if f in own] for kind, own in POSSIBLE.items()}

    def __call__(self, request: Request) -> Fault | None:
        if self.random.random() >= self.rate or not self.possible[request.kind]:
            return None
        return self.random.choice(self.possible[request.kind])


class _Object(NamedTuple):
    data: bytes
    etag: str
    modified_ms: int
    before: bytes = b""


class Bucket:
    """The objects of all processes, with the store's clock, log and counters."""

    def __init__(self, *, weaknesses: Sequence[Weakness] = (), clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.skew_ms = 0  # added to `clock`, for a clock that tests share with processes
        self.weaknesses = frozenset(weaknesses)
        self.objects: dict[str, _Object] = {}
        self.log: list[Request] = []
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # bytes, by kind of request
        self.received: Counter[str] = Counter()
        self.page_size = 1000
        self.delay_ms: Callable[[Request], int] = lambda request: 60_000  # of requests with a late effect
        self._late: list[tuple[int, int, Callable[[], object]]] = []
        self._writes = 0
        self.lock = threading.RLock()

    def process(
        self,
        name: str = "process",
        *,
        faults: Faults | None = None,
        before: Callable[[Request], None] | None = None,
    ) -> FakeStore:
        """Return the store as a new process sees it."""
        return FakeStore(self, name, faults, before)

    def now_ms(self) -> int:
        return self.clock.now_ms() + self.skew_ms

    def write(self, key: str, data: bytes) -> ObjectVersion:
        self._writes += 1
        weak = Weakness.DIGEST_ETAGS in self.weaknesses
        etag = hashlib.md5(data).hexdigest() if weak else str(self._writes)
        before = self.objects[key].data if key in self.objects else b""
        self.objects[key] = _Object(data, f'"{etag}"', self.now_ms(), before)
        return ObjectVersion(f'"{etag}"', None)

    def postpone(self, request: Request, effect: Callable[[], object]) -> None:
        self._late.append((self.now_ms() + self.delay_ms(request), len(self.log), effect))

    def settle(self) -> None:
        """Let the late requests take effect whose time has come, in the order of their times."""
        if not self._late:
            return
        now_ms = self.now_ms()
        due = sorted((late for late in self._late if late[0] <= now_ms), key=lambda late: late[:2])
        self._late = [late for late in self._late if late[0] > now_ms]
        for _, _, effect in due:
            try:
                effect()
            except LastwordError:
                continue  # its condition does not hold any more

    @property
    def pending(self) -> int:
        """Return the number of requests that have yet to take effect."""
        return len(self._late)


class FakeStore(ObjectStore):
    """The objects of a `Bucket` as one process sees them."""

    def __init__(
        self, bucket: Bucket, name: str, faults: Faults | None, before: Callable[[Request], None] | None
    ) -> None:
        self.url = "s3://double"
        self.bucket = bucket
        self.name = name
        self.faults = faults
        self.before = before
        self.number = 0
        self.stopped = False
        self.torn: ObjectVersion | None = None  # the version of the last torn read

    def _request(
        self, kind: str, keys: Sequence[str], effect: Callable[[], T], *, sent: int = 0, requests: int = 1
    ) -> T:
        if self.stopped:
            raise Stopped(self.name)
        self.number += 1
        request = Request(self.name, self.number, kind, tuple(keys))
        if self.before is not None:
            self.before(request)
        if self.stopped:  # by the hook
            raise Stopped(self.name)
        fault = self.faults(request) if self.faults is not None else None
        assert fault is None or fault in POSSIBLE[kind], f"{fault} is not possible for {kind}"
        bucket = self.bucket
        error: LastwordError | None = None
        result: Any = None
        with bucket.lock:
            if bucket.pending:
                bucket.settle()
            bucket.log.append(request)
            bucket.requests[kind] += requests
            bucket.sent[kind] += sent
            if fault is not None and fault in _LATE:
                bucket.postpone(request, effect)
            elif fault is None or fault not in _NO_EFFECT:
                try:
                    result = effect()
                except LastwordError as raised:
                    error = raised
        request.outcome = fault.name if fault else type(error).__name__ if error else "ok"
        if fault is not None and fault in _STOPS:
            self.stopped = True
            raise Stopped(self.name)
        if fault is Fault.TORN and error is None:
            return self._torn(result)
        if fault is not None and fault is not Fault.TORN:
            error = self._answer(fault, request, error)
        if error is not None:
            try:
                raise error
            finally:
                error = None  # else the error has this frame, and the frame the error
        return result  # type: ignore[no-any-return]

    def _torn(self, result: Any) -> Any:
        """Return a read with bytes of two versions, once for each: the write is over at the next read."""
        before = self.bucket.objects[self.bucket.log[-1].key].before
        if result is None or not before or result.version == self.torn:
            return result
        self.torn = result.version
        half = len(before) // 2
        return result._replace(data=before[:half] + result.data[half:])

    def _answer(self, fault: Fault, request: Request, error: LastwordError | None) -> LastwordError:
        """Return the error of a request with a fault; `error` is the one without it."""
        url, write = f"{self.url}/{request.key}", request.kind in ("put", "delete", "create", "swap")
        verb = "write" if write else "read"
        if fault is Fault.THROTTLED:
            return ThrottledError.of(url, verb, "503 SlowDown", write=write)
        if fault is Fault.REPEATED:
            refused = ObjectTakenError.of(url) if request.kind == "create" else SwapRefusedError.of(url)
            return error or refused
        if fault is Fault.SHORT:
            return error or TruncatedObjectError.of(url, 0, None)
        why = "500 InternalError" if fault is Fault.REFUSED else "no answer within the timeout"
        return UncertainRequestError.of(url, verb, why, write=write)

    def _object(self, key: str) -> _Object:
        stored = self.bucket.objects.get(key)
        if stored is None:
            raise ObjectVanishedError.of(f"{self.url}/{key}")
        return stored

    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        def effect() -> StoredObject | None:
            stored = self._object(key)
            if unless is not None and unless.etag == stored.etag:
                return None
            self.bucket.received["get"] += len(stored.data)
            return StoredObject(stored.data, ObjectVersion(stored.etag, None), stored.modified_ms)

        return self._request("get", [key], effect)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        if size == 0:
            return b""

        def effect() -> bytes:
            data = self._object(key).data[start : start + size]
            self.bucket.received["range"] += len(data)
            if len(data) != size:
                raise TruncatedObjectError.of(f"{self.url}/{key}", start + size, start + len(data))
            return data

        return self._request("range", [key], effect)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        content = b"".join(map(bytes, data)) if isinstance(data, list | tuple) else bytes(data)
        parts = -(-len(content) // PART_BYTES)
        self._request(
            "put",
            [key],
            lambda: self.bucket.write(key, content),
            sent=len(content),
            requests=1 if parts <= 1 else parts + 2,
        )

    def put_file(self, key: str, path: str) -> None:
        self.put(key, Path(path).read_bytes())

    def create(self, key: str, data: Buffer) -> ObjectVersion:
        content = bytes(data)
        was_free = key not in self.bucket.objects

        def effect() -> ObjectVersion:
            is_free = (
                was_free if Weakness.TWO_STEPS in self.bucket.weaknesses else key not in self.bucket.objects
            )
            if not is_free and Weakness.IGNORES_CREATE not in self.bucket.weaknesses:
                raise ObjectTakenError.of(f"{self.url}/{key}")
            return self.bucket.write(key, content)

        return self._request("create", [key], effect, sent=len(content))

    def swap(self, key: str, data: Buffer, version: ObjectVersion) -> ObjectVersion:
        content = bytes(data)
        checked = self.bucket.objects.get(key)

        def effect() -> ObjectVersion:
            stored = self.bucket.objects.get(key)
            if Weakness.TWO_STEPS in self.bucket.weaknesses:
                stored = checked
            current = stored is not None and stored.etag == version.etag
            if not current and Weakness.IGNORES_SWAP not in self.bucket.weaknesses:
                raise SwapRefusedError.of(f"{self.url}/{key}")
            return self.bucket.write(key, content)

        return self._request("swap", [key], effect, sent=len(content))

    def facts(self, key: str) -> ObjectFacts | None:
        def effect() -> ObjectFacts | None:
            stored = self.bucket.objects.get(key)
            return None if stored is None else ObjectFacts(key, len(stored.data), stored.modified_ms)

        return self._request("facts", [key], effect)

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        folder = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        last = ""
        while True:
            page = self._request("list", [prefix], lambda last=last: self._page(folder, last))
            yield from page
            if len(page) < self.bucket.page_size:
                return
            last = page[-1].key

    def _page(self, folder: str, last: str) -> Sequence[ObjectFacts]:
        objects = self.bucket.objects
        keys = sorted(key for key in objects if key > last and key.startswith(folder))
        return [
            ObjectFacts(key, len(objects[key].data), objects[key].modified_ms)
            for key in keys[: self.bucket.page_size]
        ]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), self.bucket.page_size):
            some = keys[start : start + self.bucket.page_size]
            self._request("delete", some, lambda some=some: self._remove(some))

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.bucket.objects.pop(key, None)

    def close(self) -> None:
        """Nothing is open."""
