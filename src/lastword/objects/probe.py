"""The check that a store enforces conditional writes, before a process writes there."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from lastword.clock import Clock, SystemClock
from lastword.errors import (
    ClockSkewError,
    LastwordError,
    NotPermittedError,
    ObjectTakenError,
    SwapRefusedError,
    UncertainRequestError,
    UnconditionalStoreError,
)
from lastword.objects.interface import ObjectStore, ObjectVersion
from lastword.units import format_duration

FOLDER = ".probe"
"""Where the objects of the probe are. A process that ends in the middle of a probe leaves one there."""

MAX_SKEW_MS = 15 * 60_000
"""The difference of clocks from which a store is refused; S3 refuses requests from the same difference."""

_ATTEMPTS = 4


@dataclass(frozen=True)
class Probe:
    """A store that enforces conditional writes.

    Attributes:
        ahead_ms: The store's clock minus this machine's; exact to a second, because stores round.
    """

    ahead_ms: int


def probe(store: ObjectStore, clock: Clock | None = None) -> Probe:
    """Check that `store` enforces create-only writes and swaps, and measure its clock.

    Writes and deletes one object of a few bytes. If the store does not answer, the probe is repeated with
    another name, after a pause.

    Args:
        store: The store.
        clock: This machine's clock.

    Raises:
        UnconditionalStoreError: The store accepts a write that it must refuse, or refuses one that it must
            accept.
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
    try:
        first = store.create(key, b"1")
    except (ObjectTakenError, SwapRefusedError):
        raise UnconditionalStoreError.of(store.url, "the first write of a new name is refused") from None
    try:
        ahead_ms = _check(store, clock, key, first)
    except LastwordError:
        with contextlib.suppress(LastwordError):  # the first error is the one to report
            store.delete([key])
        raise
    with contextlib.suppress(NotPermittedError):  # who may not delete may still append and read
        store.delete([key])
    if abs(ahead_ms) > MAX_SKEW_MS:
        side = "ahead of" if ahead_ms > 0 else "behind"
        raise ClockSkewError.of(
            store.url, f"the store's clock is {format_duration(abs(ahead_ms))} {side} this machine's"
        )
    return Probe(ahead_ms)


def _check(store: ObjectStore, clock: Clock, key: str, first: ObjectVersion) -> int:
    """Raise if a condition is not enforced; return the store's clock minus this machine's."""
    try:
        store.create(key, b"2")
    except ObjectTakenError:
        pass
    else:
        raise UnconditionalStoreError.of(
            store.url, "a second write of one name with If-None-Match is accepted"
        )
    before_ms = clock.now_ms()
    try:
        store.swap(key, b"3", first)
    except SwapRefusedError:  # also if the create that was refused has written
        raise UnconditionalStoreError.of(
            store.url, "a write with If-Match and the current version is refused"
        ) from None
    after_ms = clock.now_ms()
    try:
        store.swap(key, b"4", first)
    except SwapRefusedError:
        pass
    else:
        raise UnconditionalStoreError.of(store.url, "a write with If-Match and an old version is accepted")
    stored = store.get(key)
    if stored is None or stored.data != b"3":
        raise UnconditionalStoreError.of(store.url, "a write that was refused has replaced the object")
    return stored.modified_ms - (before_ms + after_ms) // 2
