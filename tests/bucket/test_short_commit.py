"""Small appends are committed without an open log: the files are those that an open log makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lastword
from lastword.api.bucket_dirs import _Append
from lastword.api.logs import LogDir
from lastword.api.open_dirs import OpenDirs
from lastword.api.short_commits import MOST_PAUSE, ShortCommits
from lastword.api.topic import Topic
from lastword.bucket.commit import Bucket
from lastword.bucket.manifest import Entry, ManifestVersion
from lastword.bucket.short_commit import SHORT_BYTES, OpenLogNeeded, PartitionEnd
from lastword.errors import CorruptFileError, UncertainCommitError
from lastword.partition.named import NamedProducer
from lastword.segment import names
from tests.bucket.conftest import START_MS, on_double
from tests.fakes.objects import Bucket as Objects
from tests.fakes.objects import Fault, Request

Step = Callable[[Topic[bytes, bytes]], object]


@pytest.fixture
def logs(objects: Objects) -> Iterator[LogDir]:
    with on_double(objects) as logs:
        yield logs


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each commit so far was a short one."""
    real, used = ShortCommits.commit, []

    def commit(self: ShortCommits, work: Any, kept: Any) -> bool:
        used.append(real(self, work, kept))
        return used[-1]

    monkeypatch.setattr(ShortCommits, "commit", commit)
    return used


def commit(logs: LogDir, *steps: Step) -> list[_Append]:
    """Run steps in one commit, in this thread; return their calls."""
    topic = logs["users"]
    calls = [_Append(("users",), lambda dirs, s=step: s(topic._on(dirs)), 2, None) for step in steps]  # type: ignore[misc]
    assert not logs.dirs._queue._commit(calls)  # type: ignore[attr-defined]
    return calls


def version_of(logs: LogDir) -> ManifestVersion:
    return logs.dirs._bucket.load().snapshot  # type: ignore[attr-defined, no-any-return]


def values_of(logs: LogDir) -> list[bytes | None]:
    return [record.value for record in logs["users"].read()]


# ---------------------------------------------------------------- the same files


SETTINGS: list[dict[str, Any]] = [
    {},
    {"partitions": 3},
    {"compression_type": "gzip"},
    {"message_timestamp_type": "LogAppendTime", "index_interval_bytes": 100},
    {"segment_ms": 1000, "segment_jitter_ms": 10},
    {"segment_bytes": 3000, "segment_index_bytes": 60, "index_interval_bytes": 1},
]


def random_step(rng: random.Random) -> Step:
    def key() -> bytes:
        return b"k%d" % rng.randrange(50)

    size = rng.choice((0, 10, 10, 10, 200, 200, 2000, SHORT_BYTES // 3))
    value = None if rng.random() < 0.1 else rng.randbytes(size)
    kind = rng.random()
    if kind < 0.5:
        one = key()
        return lambda topic: topic.append(one, value)
    if kind < 0.7:
        one, headers = key(), [("h", b"%d" % rng.randrange(10))]
        when = START_MS + rng.randrange(-5000, 5000)
        return lambda topic: topic.append(one, value, headers=headers, timestamp=when)
    records = [(key(), rng.randbytes(size // 10)) for _ in range(rng.randint(1, 8))]
    if kind < 0.95:
        return lambda topic: topic.extend(records)
    number = rng.randrange(1 << 40)
    return lambda topic: topic.extend(records, producer=f"p{number % 3}", sequence=number)


def files_of(logs: LogDir, objects: Objects) -> dict[str, tuple[int, bytes]]:
    """Return time and bytes of each file, but those with random ids or the times of openings."""
    files = {}
    for path, entry in version_of(logs).files():
        if path.startswith("users-") and not path.endswith((names.PARTITION_METADATA, names.PRODUCERS)):
            data = entry.data
            if entry.object is not None:
                data = objects.objects[entry.object].data[entry.position : entry.position + entry.size]
            assert len(data) == entry.size
            files[path] = entry.mtime_ms, data
    points = version_of(logs).entry(names.RECOVERY_POINTS)
    assert points is not None
    return {**files, names.RECOVERY_POINTS: (0, points.data)}


def numbered(logs: LogDir, before: ManifestVersion) -> set[str]:
    """Return the paths whose file is another one than in the version before."""
    both = [(path, entry, before.entry(path)) for path, entry in version_of(logs).files()]
    changed = {path for path, entry, old in both if old is not None and old.number != entry.number}
    return {path for path in changed if not path.endswith(names.PRODUCERS)}


class _NoShortCommits:
    def commit(self, work: object, kept: object) -> bool:
        return False


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_short_commit_makes_the_files_of_an_open_log(
    settings: Mapping[str, Any], short: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Objects(), Objects()
    rng = random.Random(str(settings))
    monkeypatch.setattr("lastword.api.short_commits.MOST_PAUSE", 0)
    named: dict[str, NamedProducer] = {}  # with the same ids in both
    monkeypatch.setattr(
        "lastword.partition.named.NamedProducer",
        lambda name, number: named.setdefault(name, NamedProducer(name, number)),
    )
    with on_double(stores[0]) as logs, on_double(stores[1]) as plain:
        plain.dirs._queue._short = _NoShortCommits()  # type: ignore[attr-defined]
        for each in (logs, plain):
            each.create_topic("users", **{"cleanup_policy": "compact", **settings})
            for number in range(settings.get("partitions", 1)):
                commit(each, lambda topic, n=number: topic.append(b"k", b"first", partition=n))  # type: ignore[misc]
        used = 0
        for _ in range(40):
            before = version_of(logs), version_of(plain)
            steps = [random_step(rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
            waited_ms = rng.choice((0, 1, 500))
            short.clear()
            for each in (logs, plain):
                each.dirs.clock.advance(waited_ms)  # type: ignore[attr-defined]
                commit(each, *steps)
            used += short[-1]
            assert files_of(logs, stores[0]) == files_of(plain, stores[1])
            assert numbered(logs, before[0]) == numbered(plain, before[1])
        assert used >= 15
        assert logs.verify().ok
        assert [(r.key, r.value, r.offset) for r in logs["users"].read()] == [
            (r.key, r.value, r.offset) for r in plain["users"].read()
        ]


# ---------------------------------------------------------------- when the open log is needed


def test_a_partition_that_opening_may_change_needs_an_open_log(logs: LogDir) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for _ in range(3):
        logs["users"].append(b"k", b"v")
    version, private = version_of(logs), f"users-0/{names.PRIVATE}"
    assert PartitionEnd.of(version, "users-0", 3).log_end == 3
    file = Entry(1, 3, START_MS, data=b"abc")
    active = names.segment_file(3, names.LOG)
    changes: list[tuple[str, Entry | None]] = [
        (f"users-0/{active}", file),
        (f"users-0/{active}", None),
        (f"users-0/{names.segment_file(3, names.INDEX)}", file),
        (f"users-0/{names.segment_file(3, names.TIME_INDEX)}", None),
        (f"users-0/{names.segment_file(3, names.SNAPSHOT)}", file),
        (f"users-0/{names.segment_file(9, names.SNAPSHOT)}", file),
        (f"users-0/{names.segment_file(9, names.LOG)}", Entry(1, 0, START_MS)),
        (f"users-0/{names.segment_file(0, names.LOG)}{names.DELETED}", file),
        (f"users-0/{names.LEADER_EPOCHS}", file),
        (f"users-0/{names.LEADER_EPOCHS}", Entry(1, 0, START_MS)),
        (f"users-0/{names.LEADER_EPOCHS}", Entry(1, 8, START_MS, "objects/x")),
        (f"{private}/{names.SYNCED}", file),
        (f"{private}/{names.SYNCED}", None),
        (f"{private}/{names.MOVED_FROM}", file),
        (f"{private}/staging-1/begun.json", file),
    ]
    for path, entry in changes:
        manifest = replace(version.manifest, changes={**version.manifest.changes, path: entry})
        with pytest.raises((OpenLogNeeded, CorruptFileError)):
            PartitionEnd.of(ManifestVersion(manifest, version.layers[:0:-1]), "users-0", 3)
    with pytest.raises(OpenLogNeeded):
        PartitionEnd.of(version, "users-0", 2)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (names.WRITERS, True),
        (names.CLEAN_SHUTDOWN, False),
        (names.BEGUN, False),
        (f"{names.INBOX}1-a", False),
        (f"{names.APPLYING}1-a", False),
    ],
)
def test_a_root_that_opening_may_change_needs_an_open_log(
    logs: LogDir, short: list[bool], path: str, expected: bool
) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for _ in range(2):
        commit(logs, lambda topic: topic.append(b"k", b"v"))
    bucket, kept = logs.dirs._bucket, logs.dirs._queue._kept  # type: ignore[attr-defined]
    entry = None if path == names.CLEAN_SHUTDOWN else Entry(1, 0, START_MS)
    bucket.edit(lambda loaded: replace(loaded.manifest, changes={**loaded.manifest.changes, path: entry}))
    kept.copy.nonce = bucket.committed().manifest.nonce
    logs.dirs._queue._short.commit(lambda dirs: logs["users"]._on(dirs).append(b"k", b"v"), kept.copy)  # type: ignore[attr-defined]
    assert short == [False, True, expected]


def test_what_a_short_commit_cannot_do_is_a_transaction(logs: LogDir, short: list[bool]) -> None:
    """A call that is refused leaves the others of its commit in the log."""
    logs.create_topic("users", cleanup_policy="compact", max_message_bytes="64KiB")

    def append(topic: Topic[bytes, bytes]) -> object:
        return topic.append(b"k", b"v")

    plain = [append, lambda topic: topic.extend([(b"k", b"w"), (b"l", b"x")])]
    special: list[Step] = [
        lambda topic: topic.append(b"k", b"v", producer="p", sequence=1),
        lambda topic: topic.append(b"k", random.Random(1).randbytes(100_000)),
        lambda topic: topic.append(None, b"v"),
        lambda topic: topic.extend([(b"k", b"%d" % n * 1000) for n in range(SHORT_BYTES // 1000)]),
        lambda topic: topic.append(b"k", b"v", partition=7),
    ]
    commit(logs, append)
    refused = 0
    for step in special:
        logs.dirs._queue._short._pause = 0  # type: ignore[attr-defined]
        commit(logs, *plain)
        calls = commit(logs, append, step)
        refused += calls[1].refused
        assert calls[0].error is None
        assert short[-1] is False
    assert refused == 3
    assert short[1:3] == [True, False]
    assert logs.verify().ok


def test_a_refusal_that_is_suppressed_counts(logs: LogDir) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    commit(logs, lambda topic: topic.append(b"k", b"first"))
    queue = logs.dirs._queue  # type: ignore[attr-defined]

    def work(dirs: OpenDirs, *, is_refused: bool) -> None:
        topic = logs["users"]._on(dirs)
        topic.append(b"k", b"1")
        with suppress(OpenLogNeeded):
            if is_refused:
                dirs.view("users", 0)
        topic.append(b"k", b"2")

    assert not queue._short.commit(partial(work, is_refused=True), queue._kept.copy)
    queue._short._pause = 0
    assert queue._short.commit(partial(work, is_refused=False), queue._kept.copy)
    assert values_of(logs) == [b"first", b"1", b"2"]


@pytest.mark.parametrize("producers", [1, 30], ids=["in the manifest", "in an object"])
def test_a_snapshot_below_the_log_end_needs_no_open_log(
    logs: LogDir, short: list[bool], producers: int
) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for sequence in range(2):
        for number in range(producers):
            logs["users"].append(b"k", bytes(1000), producer=f"p{number}", sequence=sequence)
    short.clear()
    for _ in range(200):
        logs["users"].append(b"k", bytes(200))
    assert sum(short) > 180
    newest = max(names.snapshot_offsets(version_of(logs).children("users-0")))
    assert newest > 2 * producers and logs.verify().ok


def test_commits_that_need_an_open_log_often_keep_it(logs: LogDir, short: list[bool]) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for number in range(4 * MOST_PAUSE):
        producer = {"producer": "p", "sequence": number} if number % 2 else {}
        commit(logs, lambda topic, given=producer: topic.append(b"k", b"%d" % number, **given))  # type: ignore[misc]  # noqa: B023
    assert sum(short) < 10
    short.clear()
    for _ in range(2 * MOST_PAUSE):
        commit(logs, lambda topic: topic.append(b"k", b"v"))
    assert all(short[MOST_PAUSE + 1 :])
    assert len(values_of(logs)) == 6 * MOST_PAUSE and logs.verify().ok


# ---------------------------------------------------------------- other processes, and faults


def test_another_process_commits_between(objects: Objects, logs: LogDir, short: list[bool]) -> None:
    """Nothing of a short commit that was refused stays, and the next one begins with the newer version."""
    logs.create_topic("users", cleanup_policy="compact")
    expected = []
    with on_double(objects, seed=2) as other:
        for turn in range(5):
            for number in range(8):
                expected.append(b"mine %d %d" % (turn, number))
                commit(logs, lambda topic: topic.append(b"k", expected[-1]))
            expected.append(b"other %d" % turn)
            other["users"].append(b"k", expected[-1])
            if turn == 2:
                other.set_config("users", max_message_bytes="1KiB")
    assert values_of(logs) == expected and logs.verify().ok
    assert sum(short) >= 20
    with pytest.raises(lastword.errors.RecordTooLargeError):
        logs["users"].append(b"k", b"v" * 5000)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REPEATED, Fault.LATE, Fault.REFUSED, Fault.THROTTLED])
def test_a_swap_without_an_answer(objects: Objects, fault: Fault, short: list[bool]) -> None:
    """A record is in the log once, or the call says that it is not known."""
    plan: list[Fault] = []
    with on_double(
        objects, faults=lambda request: plan.pop() if plan and request.kind == "swap" else None
    ) as logs:
        logs.create_topic("users", cleanup_policy="compact")
        for number in range(3):
            commit(logs, lambda topic: topic.append(b"k", b"%d" % number))  # noqa: B023
        plan.append(fault)
        first = len(objects.log)
        commit(logs, lambda topic: topic.append(b"k", b"faulty"))
        [outcome] = [r.outcome for r in objects.log[first:] if r.kind == "swap" and r.outcome != "ok"]
        assert outcome == fault.name and short == [False, True, True, True]
        commit(logs, lambda topic: topic.append(b"k", b"last"))
        objects.clock.advance(3_600_000)
        assert values_of(logs) == [b"0", b"1", b"2", b"faulty", b"last"] and logs.verify().ok


def test_an_uncertain_commit_is_no_transaction(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the log: a transaction would append the record twice."""
    lost = False
    with on_double(
        objects, faults=lambda request: Fault.LATE if lost and request.kind == "swap" else None
    ) as logs:
        logs.create_topic("users", cleanup_policy="compact")
        for _ in range(3):
            commit(logs, lambda topic: topic.append(b"k", b"v"))
        lost = True
        topic = logs["users"]
        with monkeypatch.context() as patch, pytest.raises(UncertainCommitError):
            patch.delattr(Bucket, "transaction")
            topic.append(b"k", b"uncertain")
        lost = False
        objects.clock.advance(3_600_000)
        logs["users"].append(b"k", b"last")
        assert values_of(logs).count(b"uncertain") <= 1
        assert values_of(logs)[-1] == b"last" and logs.verify().ok


def test_an_upload_that_takes_long_is_no_commit_of_an_old_version(
    objects: Objects, logs: LogDir, short: list[bool]
) -> None:
    logs.create_topic("users", cleanup_policy="compact")
    for _ in range(2):
        commit(logs, lambda topic: topic.append(b"k", b"v"))
    store = logs.dirs._bucket.store  # type: ignore[attr-defined]
    with on_double(objects, seed=2) as other:

        def before(request: Request) -> None:
            if request.kind == "put":
                store.before = None
                logs.dirs.clock.advance(60_000)  # type: ignore[attr-defined]
                other["users"].append(b"k", b"other")

        store.before = before
        first = len(objects.log)
        commit(logs, lambda topic: topic.append(b"k", b"mine" * 1000))
    own = [r.kind for r in objects.log[first:] if r.outcome != "ok" and r.kind == "swap"]
    assert own == []  # no swap was refused
    assert values_of(logs) == [b"v", b"v", b"other", b"mine" * 1000] and logs.verify().ok


def test_a_short_commit_has_the_names_of_what_it_replaces() -> None:
    """A method of another name would not be called: the open log would always be needed."""
    from lastword.api.short_commits import _Directories, _Log
    from lastword.partition.log import PartitionLog

    for mine, theirs in ((_Directories, OpenDirs), (_Log, PartitionLog)):
        own = {name for name in vars(mine) if not name.startswith("_")} - {"entries", "committed", "refuse"}
        assert own - {"closed", "mode"} <= set(dir(theirs)), mine
