"""The double behaves as a store does, and each of its faults does what it says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import NamedTuple

import pytest

from lastword.clock import ManualClock
from lastword.errors import (
    ClockSkewError,
    LastwordError,
    ObjectTakenError,
    SwapRefusedError,
    ThrottledError,
    TruncatedObjectError,
    UncertainRequestError,
    UnconditionalStoreError,
)
from lastword.objects import ObjectStore, ObjectVersion, StoredObject, open_store, probe
from tests.fakes.objects import (
    POSSIBLE,
    Bucket,
    FakeStore,
    Fault,
    Planned,
    Request,
    Seeded,
    Stopped,
    Weakness,
)

NAMES = itertools.count()
KINDS = ("create", "create", "swap", "swap", "get", "range", "facts", "list", "delete", "put")


class Step(NamedTuple):
    """A random request. `age` chooses one of the versions that were seen, in a swap or a get."""

    kind: str
    key: str
    data: bytes
    age: float
    number: int

    def run(self, store: ObjectStore, seen: dict[str, list[ObjectVersion]]) -> object:
        """Send the request; return what the caller sees. `seen`: the versions of each object, by age."""
        kind, key, data, age, number = self
        versions = seen.setdefault(key, [])
        match kind:
            case "create":
                versions.append(store.create(key, data))
            case "swap" if versions:
                old = versions[-1] if age < 0.6 else versions[int(age * len(versions))]
                versions.append(store.swap(key, data, old))
            case "get":
                stored = store.get(key, unless=versions[-1] if age < 0.5 and versions else None)
                return stored and stored.data
            case "range":
                return store.get_range(key, number % 2, 1)
            case "facts":
                own = store.facts(key)
                return own and own[:2]
            case "list":
                return sorted(facts[:2] for facts in store.list(["", "b", "b/", "x"][number % 4]))
            case "delete":
                store.delete([key, "b/2"])
            case "put":
                store.put(key, [data, data])
        return None


def steps(random: Random, count: int) -> Iterator[Step]:
    for number in range(count):
        key, data, age = (
            random.choice(["a", "b/1", "b/2", "bc"]),
            b"%d" % random.randrange(3),
            random.random(),
        )
        yield Step(random.choice(KINDS), key, data, age, number)


def outcome(step: Callable[[], object]) -> object:
    try:
        return step()
    except LastwordError as error:
        return type(error)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_steps_have_the_same_outcome_on_memory(seed: int) -> None:
    double, memory = Bucket().process(), open_store(f"memory://double-{next(NAMES)}")
    seen: tuple[dict[str, list[ObjectVersion]], dict[str, list[ObjectVersion]]] = ({}, {})
    for step in steps(Random(seed), 120):
        ours, theirs = (
            outcome(partial(step.run, double, seen[0])),
            outcome(partial(step.run, memory, seen[1])),
        )
        assert ours == theirs, step


def planned(fault: Fault, number: int = 1, **facts: object) -> tuple[Bucket, ObjectStore]:
    bucket = Bucket(**facts)  # type: ignore[arg-type]
    return bucket, bucket.process(faults=Planned({number: fault}))


def contents(bucket: Bucket) -> dict[str, bytes]:
    return {key: stored.data for key, stored in bucket.objects.items()}


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.REFUSED, UncertainRequestError), (Fault.THROTTLED, ThrottledError)]
)
@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_request_without_effect(kind: str, fault: Fault, error: type[LastwordError]) -> None:
    bucket = Bucket()
    version = bucket.process().create("k", b"1")
    store = bucket.process(faults=Planned({1: fault}))
    requests: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("k"),
        "range": lambda: store.get_range("k", 0, 1),
        "facts": lambda: store.facts("k"),
        "list": lambda: list(store.list()),
        "put": lambda: store.put("k", b"2"),
        "delete": lambda: store.delete(["k"]),
        "create": lambda: store.create("new", b"2"),
        "swap": lambda: store.swap("k", b"2", version),
    }
    with pytest.raises(error):
        requests[kind]()
    assert contents(bucket) == {"k": b"1"}
    assert bucket.log[-1].outcome == fault.name


def test_a_lost_reply_has_its_effect() -> None:
    bucket, store = planned(Fault.LOST)
    with pytest.raises(UncertainRequestError, match="may have taken effect"):
        store.create("k", b"1")
    assert contents(bucket) == {"k": b"1"}


def test_a_repetition_is_refused_by_its_own_first_attempt() -> None:
    bucket, store = planned(Fault.REPEATED)
    with pytest.raises(ObjectTakenError):
        store.create("k", b"1")
    assert contents(bucket) == {"k": b"1"}
    version = ObjectVersion(bucket.objects["k"].etag, None)
    store = bucket.process(faults=Planned({1: Fault.REPEATED}))
    with pytest.raises(SwapRefusedError):
        store.swap("k", b"2", version)
    assert contents(bucket) == {"k": b"2"}


def test_a_late_write_takes_effect_when_the_clock_has_moved() -> None:
    bucket, store = planned(Fault.LATE)
    with pytest.raises(UncertainRequestError):
        store.put("k", b"1")
    bucket.clock.advance(59_999)
    assert store.facts("k") is None
    bucket.clock.advance(1)
    assert store.facts("k") is not None
    assert bucket.pending == 0


def test_the_condition_of_a_late_write_is_checked_when_it_arrives() -> None:
    bucket = Bucket()
    other = bucket.process()
    version = other.create("k", b"1")
    with pytest.raises(UncertainRequestError):
        bucket.process(faults=Planned({1: Fault.LATE})).swap("k", b"late", version)
    other.swap("k", b"2", version)
    bucket.clock.advance(120_000)
    stored = other.get("k")
    assert stored is not None
    assert stored.data == b"2"
    other.delete(["k"])
    with pytest.raises(UncertainRequestError):
        bucket.process(faults=Planned({1: Fault.LATE})).create("k", b"late")
    bucket.clock.advance(120_000)
    stored = other.get("k")
    assert stored is not None
    assert stored.data == b"late"


def test_a_short_range() -> None:
    _, store = planned(Fault.SHORT, 2)
    store.put("k", b"12345")
    with pytest.raises(TruncatedObjectError):
        store.get_range("k", 0, 5)
    assert store.get_range("k", 0, 5) == b"12345"


@pytest.mark.parametrize(
    ("fault", "after", "later"),
    [
        (Fault.STOP_BEFORE, set(), set()),
        (Fault.STOP_AFTER, {"k"}, {"k"}),
        (Fault.STOP_LATE, set(), {"k"}),
    ],
)
def test_a_process_that_ends_sends_nothing_more(fault: Fault, after: set[str], later: set[str]) -> None:
    bucket, store = planned(fault, 2)
    store.facts("k")
    for _ in range(3):
        with pytest.raises(Stopped):
            store.put("k", b"1")
    assert len(bucket.log) == 2
    assert set(bucket.objects) == after
    bucket.clock.advance(3_600_000)
    assert {facts.key for facts in bucket.process().list()} == later


def test_the_hook_runs_before_a_request_and_sees_others_do_theirs() -> None:
    bucket = Bucket()
    other = bucket.process("other")
    seen = []

    def before(request: Request) -> None:
        seen.append((request.process, request.number, request.kind, request.key))
        if request.kind == "create":
            other.create("k", b"other")

    store = bucket.process("mine", before=before)
    assert store.facts("k") is None
    with pytest.raises(ObjectTakenError):
        store.create("k", b"mine")
    assert seen == [("mine", 1, "facts", "k"), ("mine", 2, "create", "k")]
    assert [(request.process, request.outcome) for request in bucket.log] == [
        ("mine", "ok"),
        ("other", "ok"),
        ("mine", "ObjectTakenError"),
    ]


def test_requests_and_bytes_are_counted_by_kind() -> None:
    bucket = Bucket()
    store = bucket.process()
    store.put("k", b"12345")
    store.put("large", bytes(20 << 20))
    store.get("k")
    store.get_range("k", 1, 3)
    store.delete([str(number) for number in range(2_500)])
    bucket.page_size = 1
    list(store.list())
    assert bucket.requests == {"put": 6, "get": 1, "range": 1, "delete": 3, "list": 3}
    assert bucket.sent["put"] == 5 + (20 << 20)
    assert (bucket.received["get"], bucket.received["range"]) == (5, 3)


def test_the_same_seed_has_the_same_faults() -> None:
    def run(seed: int) -> list[str]:
        bucket = Bucket()
        store = bucket.process(faults=Seeded(Random(seed), 0.3, [Fault.LOST, Fault.REFUSED, Fault.LATE]))
        for number in range(50):
            outcome(lambda number=number: store.create(str(number), b""))
        return [request.outcome for request in bucket.log]

    assert run(1) == run(1) != run(2)
    assert set(run(1)) == {"ok", "LOST", "REFUSED", "LATE"}


# ---------------------------------------------------------------- the probe


def test_the_probe_measures_the_clock() -> None:
    bucket = Bucket(clock=ManualClock())
    bucket.skew_ms = -7_000
    assert probe(bucket.process(), bucket.clock).ahead_ms == -7_000
    assert not bucket.objects
    bucket.skew_ms = 16 * 60_000
    with pytest.raises(ClockSkewError, match="16 m ahead of this machine's"):
        probe(bucket.process(), bucket.clock)
    assert not bucket.objects


class IgnoresRange(FakeStore):
    def get_range(self, key: str, start: int, size: int) -> bytes:
        return super().get_range(key, 0, size)


class FailsOnCondition(FakeStore):
    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        if unless is not None:
            raise UncertainRequestError.of(f"{self.url}/{key}", "read", "500 InternalError", write=False)
        return super().get(key, unless=unless)


@pytest.mark.parametrize(
    ("weaknesses", "kind", "faults", "reason"),
    [
        ([Weakness.IGNORES_CREATE], FakeStore, {}, "If-None-Match is accepted"),
        ([Weakness.IGNORES_SWAP], FakeStore, {}, "old version is accepted"),
        ([Weakness.IGNORES_SWAP], FakeStore, {4: Fault.REPEATED}, "has replaced the object"),
        ([], IgnoresRange, {}, "the store cannot hold a log.*a read with Range has other bytes"),
        ([], FailsOnCondition, {}, "the store cannot hold a log.*fails on a read with If"),
    ],
)
def test_the_probe_refuses_a_store(
    weaknesses: list[Weakness], kind: type[FakeStore], faults: dict[int, Fault], reason: str
) -> None:
    bucket = Bucket(weaknesses=weaknesses)
    with pytest.raises(UnconditionalStoreError, match=f"s3://double: .*{reason}"):
        probe(kind(bucket, "process", Planned(faults), None), bucket.clock)
    assert not bucket.objects


def test_the_probe_refuses_a_store_that_checks_and_writes_in_two_steps() -> None:
    """All its other requests come one after the other, and such a store answers them as it should."""
    bucket = Bucket(weaknesses=[Weakness.TWO_STEPS])
    together = threading.Barrier(4)

    def before(request: Request) -> None:
        if request.kind == "create" and request.key.endswith("-shared"):
            together.wait(10)

    with pytest.raises(UnconditionalStoreError, match="4 of 4 writes of one new name at the same time"):
        probe(bucket.process(before=before), bucket.clock)
    assert not bucket.objects
    bucket.weaknesses = frozenset()
    probe(bucket.process(before=before), bucket.clock)


@pytest.mark.parametrize("number", [1, 3])
def test_the_probe_accepts_a_refusal_that_its_own_repeated_write_gets(number: int) -> None:
    """A proxy has sent the request twice. The object is read, and has the bytes of this write."""
    bucket = Bucket()
    probe(bucket.process(faults=Planned({number: Fault.REPEATED})), bucket.clock)
    assert not bucket.objects


@pytest.mark.parametrize("number", range(1, 13))
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.LATE])
def test_the_probe_outlasts_one_fault(fault: Fault, number: int) -> None:
    bucket = Bucket()

    def faults(request: Request) -> Fault | None:
        return fault if request.number == number and fault in POSSIBLE[request.kind] else None

    probe(bucket.process(faults=faults), bucket.clock)


def test_the_probe_ends_if_no_request_is_answered() -> None:
    bucket = Bucket()
    with pytest.raises(UncertainRequestError):
        probe(bucket.process(faults=lambda request: Fault.REFUSED), bucket.clock)
    assert len(bucket.log) <= 4


def test_content_digests_as_versions_swap_back() -> None:
    """The store is allowed to do so; the writer above must put a nonce into each manifest."""
    bucket = Bucket(weaknesses=[Weakness.DIGEST_ETAGS])
    store = bucket.process()
    probe(store, bucket.clock)
    old = store.create("k", b"1")
    store.swap("k", b"1", store.swap("k", b"2", old))
    store.swap("k", b"3", old)
    assert contents(bucket) == {"k": b"3"}
