"""The check that a store enforces conditional writes, before a process writes there."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lastword.clock import Clock, SystemClock
from lastword.errors import (
    ClockSkewError,
    CredentialsRefusedError,
    LastwordError,
    NotPermittedError,
    ObjectTakenError,
    ObjectVanishedError,
    StorageError,
    SwapRefusedError,
    UncertainRequestError,
    UnconditionalStoreError,
)
from lastword.objects.interface import ObjectStore, ObjectVersion, StoredObject
from lastword.units import format_duration

FOLDER = ".probe"
"""Where the objects of the probe are. A process that ends in the middle of a probe leaves one there."""

MAX_SKEW_MS = 15 * 60_000
"""The difference of clocks from which a store is refused; S3 refuses requests from the same difference."""

_ATTEMPTS = 4
_CREATES_TOGETHER = 4


@dataclass(frozen=True)
class Probe:
    """A store that enforces conditional writes.

    Attributes:
        ahead_ms: The store's clock minus this machine's; exact to a second, because stores round.
    """

    ahead_ms: int


def probe(store: ObjectStore, clock: Clock | None = None) -> Probe:
    """Check that `store` enforces create-only writes and swaps, and measure its clock.

    Writes and deletes two objects of a few bytes. If the store does not answer, the probe is repeated with
    another name, after a pause.

    Args:
        store: The store.
        clock: This machine's clock.

    Raises:
        UnconditionalStoreError: The store accepts a write that it must refuse, or refuses one that it must
            accept, or does not answer reads as a log needs it.
        ClockSkewError: The clocks differ by more than 15 minutes.
        StorageError: Wrong credentials, a missing bucket, a verb that is not allowed.
    """
    clock = clock or SystemClock()
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep(0.2 * 2**attempt)
        try:
            return _probe_once(store, clock, f"{FOLDER}/{os.urandom(16).hex()}")
        except UncertainRequestError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


def _probe_once(store: ObjectStore, clock: Clock, key: str) -> Probe:
    shared = f"{key}-shared"
    first = _written(store, key, b"1", lambda data: store.create(key, data))
    if first is None:
        raise UnconditionalStoreError.of(store.url, "the first write of a new name is refused")
    try:
        stored, now_ms = _check(store, clock, key, first)
        _check_together(store, shared)
        _check_reads(store, stored, key)
    except LastwordError:
        with contextlib.suppress(LastwordError):  # the first error is the one to report
            store.delete([key, shared])
        raise
    with contextlib.suppress(NotPermittedError):  # who may not delete may still append and read
        store.delete([key, shared])
    ahead_ms = stored.modified_ms - now_ms
    if abs(ahead_ms) > MAX_SKEW_MS:
        side = "ahead of" if ahead_ms > 0 else "behind"
        raise ClockSkewError.of(
            store.url, f"the store's clock is {format_duration(abs(ahead_ms))} {side} this machine's"
        )
    return Probe(ahead_ms)


def _check(store: ObjectStore, clock: Clock, key: str, first: ObjectVersion) -> tuple[StoredObject, int]:
    """Raise if a condition is not enforced; return the object, and when it was written by this machine."""
    try:
        store.create(key, b"2")
    except ObjectTakenError:
        pass
    else:
        raise UnconditionalStoreError.of(
            store.url, "a second write of one name with If-None-Match is accepted"
        )
    before_ms = clock.now_ms()
    if _written(store, key, b"3", lambda data: store.swap(key, data, first)) is None:
        # Also if the create that was refused has written.
        raise UnconditionalStoreError.of(
            store.url, "a write with If-Match and the current version is refused"
        )
    after_ms = clock.now_ms()
    try:
        store.swap(key, b"4", first)
    except SwapRefusedError:
        pass
    else:
        raise UnconditionalStoreError.of(store.url, "a write with If-Match and an old version is accepted")
    stored = store.get(key)
    if stored is None or not stored.data.startswith(b"3"):
        raise UnconditionalStoreError.of(store.url, "a write that was refused has replaced the object")
    return stored, (before_ms + after_ms) // 2


def _written(
    store: ObjectStore, key: str, step: bytes, write: Callable[[bytes], ObjectVersion]
) -> ObjectVersion | None:
    """Return the version that a write made; None: it was refused.

    A proxy may send a request twice: the second one is refused because the first has written. No other
    process writes this object, and each write has content of its own.
    """
    data = step + os.urandom(8)
    try:
        return write(data)
    except (ObjectTakenError, SwapRefusedError):
        with contextlib.suppress(ObjectVanishedError):
            stored = store.get(key)
            if stored is not None and stored.data == data:
                return stored.version
        return None


def _check_together(store: ObjectStore, key: str) -> None:
    """Raise if more than one of some creates of one name at the same time is accepted.

    A store that checks a condition and writes in a later step passes every other check, and loses commits.
    """
    begin = threading.Barrier(_CREATES_TOGETHER)

    def create(number: int) -> ObjectVersion | LastwordError:
        with contextlib.suppress(threading.BrokenBarrierError):
            begin.wait(1)
        try:
            return store.create(key, b"%d" % number)
        except LastwordError as error:
            return error

    with ThreadPoolExecutor(_CREATES_TOGETHER, thread_name_prefix="lastword-probe") as pool:
        results = list(pool.map(create, range(_CREATES_TOGETHER)))
    accepted = sum(isinstance(result, ObjectVersion) for result in results)
    if accepted > 1:
        raise UnconditionalStoreError.of(
            store.url,
            f"{accepted} of {_CREATES_TOGETHER} writes of one new name at the same time are accepted",
        )
    if not accepted:  # none is refused without a cause: an answer was lost, or requests that met got 409
        for error in results:
            if isinstance(error, LastwordError) and not isinstance(error, ObjectTakenError):
                raise error


def _check_reads(store: ObjectStore, stored: StoredObject, key: str) -> None:
    """Raise if reads of ranges, and reads with If-None-Match, are not answered as a log needs it."""
    if bytes(store.get_range(key, 1, 2)) != stored.data[1:3]:
        raise UnconditionalStoreError.reads(store.url, "a read with Range has other bytes than the object")
    failure: StorageError | None = None
    for _ in range(2):
        try:
            store.get(key, unless=stored.version)
            return
        except (CredentialsRefusedError, NotPermittedError):
            raise
        except StorageError as error:
            failure = error
        store.get(key)  # raises if the store does not answer at all
    assert failure is not None
    why = f"it fails on a read with If-None-Match: {failure.message}"
    raise UnconditionalStoreError.reads(store.url, why) from failure
