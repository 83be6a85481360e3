"""What every object store must do: one script for the double, for memory and for each server.

A check takes an empty store and a local directory, and fails if the store breaks a promise of
`lastword.objects.interface`. `CHECKS` has all checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from lastword.errors import (
    ObjectTakenError,
    ObjectVanishedError,
    SwapRefusedError,
    TruncatedObjectError,
    UncertainRequestError,
)
from lastword.objects import ObjectStore, ObjectVersion, probe
from tests.support.threads import together

Check = Callable[[ObjectStore, Path], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def content(store: ObjectStore, key: str) -> bytes:
    stored = store.get(key)
    assert stored is not None
    return stored.data


@check
def objects_are_read_as_they_were_written(store: ObjectStore, scratch: Path) -> None:
    store.put("a/one", b"first")
    store.put("a/two", [b"fi", bytearray(b"r"), memoryview(b"xst")[1:]])
    store.put("a/none", b"")
    assert [content(store, key) for key in ("a/one", "a/two", "a/none")] == [b"first", b"first", b""]


@check
def a_missing_object_is_named(store: ObjectStore, scratch: Path) -> None:
    for read in (lambda: store.get("no/such"), lambda: store.get_range("no/such", 0, 1)):
        with pytest.raises(ObjectVanishedError, match="no/such") as raised:
            read()
        assert raised.value.file == f"{store.url}/no/such"
    assert store.facts("no/such") is None


@check
def ranges_are_exact(store: ObjectStore, scratch: Path) -> None:
    store.put("ranged", bytes(range(100)))
    assert store.get_range("ranged", 10, 5) == bytes(range(10, 15))
    assert store.get_range("ranged", 99, 1) == b"c"
    assert store.get_range("ranged", 50, 0) == b""
    for start, size in ((90, 11), (100, 1), (200, 50)):
        with pytest.raises(TruncatedObjectError, match="ranged"):
            store.get_range("ranged", start, size)


@check
def create_writes_once(store: ObjectStore, scratch: Path) -> None:
    store.create("once", b"mine")
    with pytest.raises(ObjectTakenError, match="once"):
        store.create("once", b"yours")
    with pytest.raises(ObjectTakenError):
        store.create("once", b"mine")
    assert content(store, "once") == b"mine"


@check
def a_name_can_be_created_again_after_its_deletion(store: ObjectStore, scratch: Path) -> None:
    first = store.create("again", b"1")
    store.delete(["again"])
    store.create("again", b"2")
    with pytest.raises(SwapRefusedError):
        store.swap("again", b"3", first)
    assert content(store, "again") == b"2"


@check
def swap_replaces_one_version(store: ObjectStore, scratch: Path) -> None:
    first = store.create("manifest", b"1")
    second = store.swap("manifest", b"2", first)
    with pytest.raises(SwapRefusedError, match="manifest"):
        store.swap("manifest", b"3", first)
    assert content(store, "manifest") == b"2"
    store.swap("manifest", b"4", second)
    assert content(store, "manifest") == b"4"


@check
def a_version_that_was_read_can_be_swapped(store: ObjectStore, scratch: Path) -> None:
    store.create("manifest", b"1")
    for step in range(3):
        stored = store.get("manifest")
        assert stored is not None
        assert stored.data == b"1" + b"+" * step
        store.swap("manifest", stored.data + b"+", stored.version)


@check
def a_missing_object_is_not_swapped(store: ObjectStore, scratch: Path) -> None:
    version = store.create("gone", b"1")
    store.delete(["gone"])
    with pytest.raises(SwapRefusedError):
        store.swap("gone", b"2", version)
    assert store.facts("gone") is None


@check
def an_unchanged_object_is_not_sent_again(store: ObjectStore, scratch: Path) -> None:
    written = store.create("polled", b"1")
    stored = store.get("polled")
    assert stored is not None
    assert store.get("polled", unless=stored.version) is None
    assert store.get("polled", unless=written) is None
    store.swap("polled", b"2", stored.version)
    changed = store.get("polled", unless=stored.version)
    assert changed is not None
    assert changed.data == b"2"


@check
def lists_have_a_folder_and_what_is_below(store: ObjectStore, scratch: Path) -> None:
    keys = ["top", "a/1", "a/2", "a/b/3", "ab/4", "a.5"]
    for key in keys:
        store.put(key, key.encode())
    assert {facts.key for facts in store.list()} == set(keys)
    for folder in ("a", "a/"):
        assert {facts.key: facts.size for facts in store.list(folder)} == {"a/1": 3, "a/2": 3, "a/b/3": 5}
    assert list(store.list("nothing")) == []


@check
def lists_have_more_than_one_page(store: ObjectStore, scratch: Path) -> None:
    keys = {f"page/{number:04}" for number in range(1_050)}
    together(*(lambda part=part: [store.put(key, b"x") for key in part] for part in chunks(keys)))
    assert {facts.key for facts in store.list("page")} == keys
    store.delete(sorted(keys))
    assert list(store.list("page")) == []


def chunks(keys: set[str], parts: int = 4) -> list[list[str]]:
    ordered = sorted(keys)
    return [ordered[start::parts] for start in range(parts)]


@check
def deletion_ignores_what_is_missing(store: ObjectStore, scratch: Path) -> None:
    for key in ("x/1", "x/2", "x/3"):
        store.put(key, b"x")
    store.delete([])
    store.delete(["x/1", "x/none", "x/3", "none"])
    store.delete(["none"])
    assert [facts.key for facts in store.list("x")] == ["x/2"]


@check
def facts_agree_with_reads_and_lists(store: ObjectStore, scratch: Path) -> None:
    store.put("fact", b"12345")
    facts = store.facts("fact")
    stored = store.get("fact")
    assert facts is not None
    assert stored is not None
    assert (facts.key, facts.size) == ("fact", 5)
    (listed,) = store.list()
    assert (listed.key, listed.size) == ("fact", 5)
    times = [facts.modified_ms, stored.modified_ms, listed.modified_ms]
    assert max(times) - min(times) < 1000, "the times of one object differ by more than their rounding"


@check
def later_objects_are_not_dated_earlier(store: ObjectStore, scratch: Path) -> None:
    store.put("early", b"1")
    store.put("late", b"2")
    early, late = store.facts("early"), store.facts("late")
    assert early is not None
    assert late is not None
    assert early.modified_ms <= late.modified_ms


@check
def large_objects_are_sent_in_parts(store: ObjectStore, scratch: Path) -> None:
    block = os.urandom(1 << 20)
    store.put("large", [block] * 20)
    facts = store.facts("large")
    assert facts is not None
    assert facts.size == 20 << 20
    assert store.get_range("large", (8 << 20) - 3, 7) == (block + block)[(1 << 20) - 3 : (1 << 20) + 4]
    file = scratch / "large"
    file.write_bytes(block * 17)
    store.put_file("from-file", str(file))
    assert content(store, "from-file") == block * 17
    file.write_bytes(b"small")
    store.put_file("small", str(file))
    assert content(store, "small") == b"small"


@check
def one_of_many_creates_succeeds(store: ObjectStore, scratch: Path) -> None:
    for race in range(5):
        winners = race_of(4, lambda number, race=race: store.create(f"race/{race}", b"%d" % number))
        assert len(winners) == 1
        assert content(store, f"race/{race}") == b"%d" % winners[0]


@check
def one_of_many_swaps_succeeds(store: ObjectStore, scratch: Path) -> None:
    version = store.create("raced", b"-")
    for race in range(5):  # each content is new: a version may be the digest of the content

        def write(number: int, race: int = race, version: ObjectVersion = version) -> ObjectVersion:
            return store.swap("raced", b"%d %d" % (race, number), version)

        winners = race_of(4, write)
        assert len(winners) <= 1  # S3 may answer 409 to all of them
        stored = store.get("raced")
        assert stored is not None
        assert not winners or stored.data == b"%d %d" % (race, winners[0])
        version = stored.version


def race_of(writers: int, write: Callable[[int], ObjectVersion]) -> list[int]:
    """Return the numbers of the writers whose write succeeded, with all of them at the same time."""
    winners: list[int] = []

    def run(number: int) -> None:
        with suppress(ObjectTakenError, SwapRefusedError, UncertainRequestError):
            write(number)
            winners.append(number)

    together(*(partial(run, number) for number in range(writers)))
    return winners


@check
def the_probe_accepts_the_store_and_leaves_nothing(store: ObjectStore, scratch: Path) -> None:
    assert abs(probe(store).ahead_ms) < 5_000
    assert list(store.list()) == []
