"""A log in a bucket with wrong credentials, missing permissions, foreign, damaged and missing objects.

Each error is typed and has the URL and a remedy. Nothing that was there is lost, and nothing is half written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import count

import pytest

import lastword
from lastword.bucket import commit
from lastword.bucket.collect import collect
from lastword.bucket.commit import Bucket as LogBucket
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import MANIFEST, OBJECTS, Manifest, Patch
from lastword.cli import main
from lastword.clock import ManualClock, SystemClock
from lastword.errors import (
    BucketMissingError,
    BusyError,
    ClockSkewError,
    CorruptFileError,
    CredentialsRefusedError,
    DataError,
    FileVanishedError,
    LastwordError,
    NotPermittedError,
    StorageError,
    ThrottledError,
)
from lastword.files.framed import Framed
from tests.fakes.objects import Bucket, Fault, Planned, Request, Stopped

URL = "s3://double"
ROWS = [(f"k{i % 60}", {"n": i, "text": f"{i * 7919 % 1000:040d}"}) for i in range(240)]
Open = Callable[..., lastword.LogDir]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(clock=ManualClock(SystemClock().now_ms()))


@pytest.fixture
def opened(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open the log in the double. `before` is called before each request."""
    logs: list[lastword.LogDir] = []

    def open_log(mode: str = "a", before: Callable[[Request], None] | None = None) -> lastword.LogDir:
        monkeypatch.setattr(lastword.objects, "open_store", lambda *_: bucket.process(before=before))
        opened = lastword.open(
            URL,
            mode,  # type: ignore[arg-type]
            clock=ManualClock(SystemClock().now_ms()),
            lastword_commit_linger_ms=0,
        )
        logs.append(opened)
        return opened

    yield open_log
    for each in logs:
        with_faults_over(each)


def with_faults_over(logs: lastword.LogDir) -> None:
    logs.dirs._bucket.store.before = None  # type: ignore[attr-defined]
    logs.close()


def make_log(opened: Open) -> list[tuple]:
    """Make a log whose files are in objects; return its records."""
    logs = opened()
    topic = logs.create_topic(
        "users", partitions=2, key_serializer="str", value_serializer="json", cleanup_policy="compact"
    )
    for start in range(0, len(ROWS), 80):
        topic.extend(ROWS[start : start + 80], producer="job", sequence=start + 1)
    logs.clean("users", 0)
    return shown(topic)


def objects_of_files(logs: lastword.LogDir) -> list[str]:
    """Return the objects that hold bytes of files: those of the newest version without its pages."""
    return sorted({key for _, entry in logs.dirs.newest.files() for key in entry.objects()})  # type: ignore[attr-defined]


def shown(topic: lastword.Topic) -> list[tuple]:
    return sorted((r.partition, r.offset, r.key, r.value["n"]) for r in topic.read())


def is_complete(error: LastwordError) -> bool:
    return str(error.file).startswith(URL) and bool(error.remedy)


def deny(*kinds: str) -> Callable[[Request], None]:
    def before(request: Request) -> None:
        if request.kind in kinds:
            raise NotPermittedError.verb(f"{URL}/{request.key}", request.kind)

    return before


# ---------------------------------------------------------------- credentials, permissions, clocks


@pytest.mark.parametrize("error", [CredentialsRefusedError.of(URL, "403"), BucketMissingError.of(URL)])
def test_a_store_that_refuses_everything(bucket: Bucket, opened: Open, error: LastwordError) -> None:
    records = make_log(opened)
    before = dict(bucket.objects)

    def refuse(request: Request) -> None:
        raise error

    for mode in ("r", "a"):
        with pytest.raises(type(error)) as refused:
            opened(mode, refuse)
        assert is_complete(refused.value)
    logs = opened()
    logs.dirs._bucket.store.before = refuse  # type: ignore[attr-defined] # credentials lapse meanwhile
    with pytest.raises(type(error)):
        logs["users"].append("k", {"n": 1})
    assert {key: data for key, data in bucket.objects.items() if key in before} == before
    logs.dirs._bucket.store.before = None  # type: ignore[attr-defined]
    assert shown(logs["users"]) == records
    assert logs["users"].append("k", {"n": 1}).offset >= 0


PERMITTED = {
    "get": set(),
    "range": {"small", "large", "collect"},
    "put": {"small", "read", "verify"},
    "swap": {"read", "verify"},
    "list": {"small", "large", "read", "clean"},
    "delete": {"small", "large", "read", "clean", "verify"},
}


@pytest.mark.parametrize("kind", PERMITTED)
def test_a_verb_without_permission(bucket: Bucket, opened: Open, kind: str) -> None:
    make_log(opened)
    expected = shown(opened("r")["users"])
    verbs: dict[str, Callable[[lastword.LogDir], object]] = {
        "small": lambda logs: logs["users"].append("new", {"n": -1}),
        "large": lambda logs: logs["users"].extend(ROWS[:100]),
        "read": lambda logs: shown(logs["users"]),
        "clean": lambda logs: logs.clean("users"),
        "verify": lambda logs: logs.verify(),
        "collect": lambda logs: logs.collect(retention=0),
    }
    done = set()
    for name, verb in verbs.items():
        before = bucket.objects[MANIFEST].data
        try:
            logs = opened("a")
            logs.dirs._bucket.store.before = deny(kind)  # type: ignore[attr-defined]
            result = verb(logs)
        except NotPermittedError as error:
            assert is_complete(error)
            assert bucket.objects[MANIFEST].data == before
            continue
        finally:
            logs.dirs._bucket.store.before = None  # type: ignore[attr-defined]
        if name == "verify" and result.problems:  # type: ignore[attr-defined]
            assert all(problem.remedy for problem in result.problems)  # type: ignore[attr-defined]
            continue
        done.add(name)
    assert done == PERMITTED[kind]
    logs = opened("r")
    assert not logs.verify().problems
    newest = {key: n for _, _, key, n in expected}
    newest |= {"new": -1} if "small" in done else {}
    newest |= {key: value["n"] for key, value in ROWS[:100]} if "large" in done else {}
    assert {r.key: r.value["n"] for r in logs["users"].read(view="newest")} == newest


def test_a_process_that_may_not_delete_opens_a_log_to_append(bucket: Bucket, opened: Open) -> None:
    make_log(opened)
    assert opened("a", deny("delete"))["users"].append("k", {"n": 1}).offset >= 0


@pytest.mark.parametrize("minutes", [-14, 14])
def test_the_clocks_of_store_and_machine_differ(bucket: Bucket, opened: Open, minutes: int) -> None:
    make_log(opened)
    bucket.skew_ms = minutes * 60_000
    logs = opened()
    logs.clean("users", 1)
    records = shown(logs["users"])
    logs.collect(retention="10m")
    assert logs.collect(retention="10m").removed_objects == 0
    bucket.clock.advance(11 * 60_000)
    assert logs.collect(retention="10m").removed_objects > 0
    assert shown(logs["users"]) == records
    bucket.skew_ms = minutes * 120_000
    with pytest.raises(ClockSkewError) as refused:
        opened()
    assert is_complete(refused.value)


# ---------------------------------------------------------------- foreign objects, other versions


def test_a_foreign_object_is_not_touched(bucket: Bucket, opened: Open) -> None:
    records = make_log(opened)
    foreign = [
        "README",
        "users-0/00000000000000000000.log",
        f"{OBJECTS}report.csv",
        f"{OBJECTS}sub/{'a' * 32}",
    ]
    foreign += [f"{OBJECTS}{'A' * 32}", f"{OBJECTS}{'a' * 31}", f"{OBJECTS}{'a' * 33}"]
    for key in foreign:
        bucket.write(key, b"of another program")
    logs = opened()
    ours = {key for key in bucket.objects if key.startswith(OBJECTS)} - {*foreign}
    plan = logs.collect(retention=0, dry_run=True)
    assert plan.waiting_objects + plan.removed_objects == len(ours - logs.dirs.newest.objects())  # type: ignore[attr-defined]
    for _ in range(3):
        logs.collect(retention=0)
    assert all(bucket.objects[key].data == b"of another program" for key in foreign)
    assert shown(logs["users"]) == records
    assert not logs.verify().problems


def test_collections_of_an_idle_log_change_nothing(bucket: Bucket, opened: Open) -> None:
    """A condemned list that was replaced is no reason for another one."""
    make_log(opened)
    logs = opened()
    for _ in range(2):  # the second list replaces the first
        logs["users"].extend(ROWS[:100])
        logs.clean("users")
        logs.collect(retention="1h")
    logs.collect(retention="1h")
    before = bucket.objects[MANIFEST]
    for _ in range(3):
        bucket.clock.advance(60_000)
        logs.collect(retention="1h")
    assert bucket.objects[MANIFEST] == before
    bucket.clock.advance(3_600_000)
    assert logs.collect(retention="1h").removed_objects


# ---------------------------------------------------------------- damage


def damaged(data: bytes, samples: int) -> Iterator[bytes]:
    """Yield the bytes cut, and with one bit flipped, at positions all over them."""
    step = max(1, len(data) // samples)
    for at in range(0, len(data), step):
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def inflated(data: bytes) -> bytes | None:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


def test_a_damaged_manifest_or_page(bucket: Bucket, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of another log, of another kind or of a later format. No process changes anything then."""
    monkeypatch.setattr(commit, "CHANGES_BYTES", 1000)
    records = make_log(opened)
    page = Manifest.decode(bucket.objects[MANIFEST].data, URL).pages[0].object
    other = Bucket(clock=bucket.clock)
    fields = {"changes": {"users-7/a": [1, 1, 1, "objects/" + "0" * 32, 0]}}
    LogBucket(other.process()).transaction(lambda files: files.write_atomic(f"{URL}/a", b"x" * 5000))
    kinds = (("bucket-page", 2), ("bucket-page", 1), ("bucket-manifest", 2))
    forms = (Framed(kind, version, code="", remedy="") for kind, version in kinds)
    foreign = [zlib.compress(form.encode(fields), 1) for form in forms]
    foreign += [b"", bucket.objects[page].data + b"\0", other.objects[MANIFEST].data]
    newer = Framed("bucket-manifest", 3, code="", remedy="").encode({"of": "the future"})
    for key, more in ((MANIFEST, [newer]), (page, foreign)):
        whole = bucket.objects[key].data
        for data in (*damaged(whole, 12), *more):
            if inflated(data) == inflated(whole) and len(data) == len(whole):
                continue  # a bit that pads the last byte of the compressed stream
            bucket.write(key, data)
            before = dict(bucket.objects)
            for mode in ("r", "a"):
                with pytest.raises(CorruptFileError) as refused:
                    opened(mode)
                assert refused.value.file == f"{URL}/{key}" and refused.value.remedy
                assert (refused.value.code == "newer-version") == (data == newer)
            assert bucket.objects == before
        bucket.write(key, whole)
    lost = bucket.objects.pop(page)
    with pytest.raises(CorruptFileError) as refused:
        opened("r")
    assert refused.value.code == "lost-object" and is_complete(refused.value)
    bucket.objects[page] = lost
    assert shown(opened("r")["users"]) == records


def test_a_damaged_object(bucket: Bucket, opened: Open) -> None:
    records = make_log(opened)
    logs = opened("r")
    files = dict(logs.dirs.newest.files())  # type: ignore[attr-defined]
    unreadable = 0
    for path, entry in files.items():
        if entry.object is None:
            continue
        key, end = entry.object, entry.position + entry.size
        whole = bucket.objects[key].data
        for part in damaged(whole[entry.position : end], 6):
            bucket.write(
                key, whole[: entry.position] + part + (whole[end:] if len(part) == entry.size else b"")
            )
            before = dict(bucket.objects)
            reader = opened("r")
            try:
                assert shown(reader["users"]) == records  # the damage is in an index, for example
            except DataError as error:
                unreadable += 1
                assert is_complete(error)
            problems = reader.verify().problems
            assert problems and all(p.file.startswith(URL) for p in problems), path
            assert all(key in p.remedy for p in problems if p.file == f"{URL}/{path}"), problems
            try:
                opened()["users"].append("k", {"n": 1})
            except DataError as error:
                assert is_complete(error)
            changed = {k for k in before if bucket.objects.get(k) != before[k]}
            assert changed <= {MANIFEST}
            bucket.objects.clear()
            bucket.objects.update(before)
        bucket.write(key, whole)
    assert unreadable
    assert shown(opened("r")["users"]) == records


def test_a_compressed_manifest_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Manifest("nonce").encode()
    assert Manifest.decode(whole, URL) == Manifest("nonce")
    assert Manifest.decode(zlib.decompress(whole), URL) == Manifest("nonce")  # of an earlier build
    with pytest.raises(CorruptFileError):
        Manifest.decode(whole + b"x", URL)
    monkeypatch.setattr("lastword.bucket.manifest.MAX_BYTES", 20)
    with pytest.raises(CorruptFileError, match="too long"):
        Manifest.decode(whole, URL)


def test_a_damaged_patch() -> None:
    data = Patch({5: b"abc", 900: b"0123456789"}).encode()
    for other in damaged(data, len(data)):
        with pytest.raises(CorruptFileError) as refused:
            Patch.decode(other, f"{URL}/objects/x")
        assert is_complete(refused.value)


# ---------------------------------------------------------------- missing objects


def test_every_missing_object_is_found_by_one_listing(bucket: Bucket, opened: Open) -> None:
    records = make_log(opened)
    named = objects_of_files(opened("r"))
    assert len(named) >= 3
    for key in named:
        lost = bucket.objects.pop(key)
        reader = opened("r")
        bucket.requests.clear()
        with pytest.raises(CorruptFileError) as refused:
            shown(reader["users"])
            shown(opened("r")["users"])
            raise CorruptFileError("of an index", code="lost-object", remedy="none", file=f"{URL}/{key}")
        assert refused.value.code == "lost-object" and refused.value.file == f"{URL}/{key}"
        assert refused.value.remedy
        assert sum(bucket.requests.values()) < 40
        bucket.requests.clear()
        problems = [p for p in reader.verify().problems if p.code == "lost-object"]
        assert [problem.file for problem in problems] == [f"{URL}/{key}"]
        files = [path for path, entry in reader.dirs.newest.files() if key in entry.objects()]  # type: ignore[attr-defined]
        assert problems[0].remedy and all(path in problems[0].text for path in sorted(files)[:8])
        assert bucket.requests["list"] == 1 and not bucket.requests["facts"]
        bucket.objects[key] = lost
        assert not reader.verify().problems
    assert shown(opened("r")["users"]) == records


def test_an_object_that_is_too_short_is_found_by_its_size(bucket: Bucket, opened: Open) -> None:
    make_log(opened)
    logs = opened("r")
    key = objects_of_files(logs)[-1]
    size = len(bucket.objects[key].data)
    bucket.write(key, bucket.objects[key].data[:-1])
    [problem] = [p for p in logs.verify().problems if p.code == "truncated-object"]
    assert problem.file == f"{URL}/{key}" and problem.position == size - 1 and problem.remedy
    assert "needed by users-" in problem.text


def test_an_object_of_one_file_that_is_too_long_is_found_by_its_size(
    bucket: Bucket, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is longer than any that files share."""
    for module in ("commit", "collect"):
        monkeypatch.setattr(f"lastword.bucket.{module}.BUNDLE_BYTES", 2500)
    records = make_log(opened)
    logs = opened("r")
    files = {entry.object: entry for _, entry in logs.dirs.newest.files() if entry.object}  # type: ignore[attr-defined]
    alone = {key for key, entry in files.items() if entry.position == 0 and entry.size >= 2500}
    assert alone and alone != set(files)
    for key in files:
        bucket.write(key, bucket.objects[key].data + b"m")
    problems = [problem for problem in logs.verify().problems if problem.code == "longer-object"]
    assert {problem.file for problem in problems} == {f"{URL}/{key}" for key in alone}
    assert all(problem.remedy and "users-" in problem.text for problem in problems)
    for key in files.keys() - alone:
        bucket.write(key, bucket.objects[key].data + bytes(5000))
    problems = [problem for problem in logs.verify().problems if problem.code == "longer-object"]
    assert {problem.file for problem in problems} == {f"{URL}/{key}" for key in files}
    assert shown(opened("r")["users"]) == records


def test_a_lost_manifest_is_not_taken_for_an_empty_log(bucket: Bucket, opened: Open) -> None:
    make_log(opened)
    logs = opened()
    lost = bucket.objects.pop(MANIFEST)
    before = dict(bucket.objects)
    for attempt in (opened, lambda: logs["users"].append("k", {"n": 1}), lambda: shown(logs["users"])):
        with pytest.raises(CorruptFileError) as refused:
            attempt()
        assert refused.value.code == "lost-object" and refused.value.file == f"{URL}/{MANIFEST}"
    assert {key: data for key, data in bucket.objects.items() if not key.startswith(".probe")} == before
    bucket.objects[MANIFEST] = lost
    assert logs["users"].append("k", {"n": 1}).offset >= 0


def test_a_new_log_has_its_manifest_before_its_first_object(bucket: Bucket, opened: Open) -> None:
    """Otherwise a process that dies in between would leave a log that looks like one without its manifest."""
    opened()
    assert not bucket.requests["put"]
    bucket.objects.clear()
    with pytest.raises(Stopped):
        LogBucket(bucket.process(faults=Planned({2: Fault.STOP_BEFORE}))).begin_uploads("job", 1000)
    assert bucket.objects  # of the store's time
    opened().create_topic("users")


def test_a_transaction_that_reads_a_vanished_file_runs_again(bucket: Bucket) -> None:
    """A file that is gone must not count as absent: the names of batches, for example."""
    path = f"{URL}/names"
    LogBucket(bucket.process()).transaction(lambda files: files.write_atomic(path, b"a" * 5000))

    def names_of(files: BucketFiles) -> str:
        runs.append(1)
        if len(runs) == 1:
            other = LogBucket(bucket.process())
            other.transaction(lambda files: files.write_atomic(path, b"b" * 5000))
            for _ in range(2):
                collect(other, retention_ms=0)
        try:
            name = files.read_bytes(path)[:1].decode()
        except FileVanishedError:
            name = "absent"
        files.write_atomic(f"{URL}/result", name.encode())
        return name

    runs: list[int] = []
    assert LogBucket(bucket.process()).transaction(names_of) == "b"
    assert len(runs) == 2


# ---------------------------------------------------------------- every field


WRONG = (None, "x", -1, [None], [["x"]], {"a": ["x"]}, {"users-0/x": [1, -5, 1, "objects/x", 0]})


@pytest.mark.parametrize(
    "field", ["nonce", "history", "collection", "pages", "changes", "pins", "uploads", "servers"]
)
def test_a_field_of_the_manifest_with_a_valid_checksum(bucket: Bucket, opened: Open, field: str) -> None:
    """A field is missing, or of another kind: as of a program with a fault."""
    make_log(opened)
    form = Framed("bucket-manifest", 2, code="", remedy="")
    fields = form.decode(zlib.decompress(bucket.objects[MANIFEST].data), URL)
    refusals = 0
    for wrong in ({}, *({field: value} for value in WRONG)):
        kept = {name: value for name, value in fields.items() if name != field}
        bucket.write(MANIFEST, form.encode(kept | wrong))
        before = dict(bucket.objects)
        for mode in ("r", "a"):
            try:
                opened(mode)
            except DataError as error:
                assert is_complete(error), (wrong, error)
                refusals += 1
        if refusals:
            assert {k: v for k, v in bucket.objects.items() if k in before} == before
    assert refusals >= 6


def test_a_damaged_condemned_list_begins_again(bucket: Bucket, opened: Open) -> None:
    records = make_log(opened)
    logs = opened()
    logs.clean("users", 1)
    records = shown(logs["users"])
    assert logs.collect(retention="10m").waiting_objects
    key = Manifest.decode(bucket.objects[MANIFEST].data, URL).condemned
    assert key is not None
    whole = bucket.objects[key].data
    for data in damaged(whole, 10):
        if inflated(data) != inflated(whole):
            bucket.write(key, data)
            result = logs.collect(retention=0, dry_run=True)
            assert not result.removed_objects and result.waiting_objects
    bucket.write(key, b"")
    bucket.clock.advance(3_600_000)
    assert logs.collect(retention="10m").removed_objects == 0
    bucket.clock.advance(3_600_000)
    assert logs.collect(retention="10m").removed_objects > 0
    assert shown(logs["users"]) == records


# ---------------------------------------------------------------- a store that never gets better


class Sleeps(ManualClock):
    """A clock that counts the time that is slept."""

    slept_seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_seconds += seconds
        super().sleep(seconds)


@pytest.mark.parametrize("kinds", [("swap",), ("swap", "get"), ("put",), ("get",), ("list",), ("facts",)])
def test_a_store_that_throttles_for_ever(bucket: Bucket, opened: Open, kinds: tuple[str, ...]) -> None:
    records = make_log(opened)
    logs = opened()
    store = logs.dirs._bucket.store  # type: ignore[attr-defined]
    clock = logs.dirs._bucket.clock = Sleeps(bucket.clock.now_ms())  # type: ignore[attr-defined]

    def throttle(request: Request) -> None:
        if request.kind in kinds:
            raise ThrottledError.of(f"{URL}/{request.key}", "read", "503 SlowDown", write=False)

    manifest = bucket.objects[MANIFEST].data
    verbs: list[Callable[[], object]] = [
        lambda: logs["users"].extend(ROWS[:100]),
        lambda: logs.clean("users", 1),
        lambda: logs.collect(retention=0),
        lambda: logs.dirs._bucket.pin(1000),  # type: ignore[attr-defined]
    ]
    failures = 0
    for verb in verbs:
        clock.slept_seconds, first = 0.0, store.number
        store.before = throttle
        try:
            verb()
        except (BusyError, StorageError) as error:
            assert is_complete(error)
            failures += 1
        finally:
            store.before = None
        assert store.number - first < 100 and clock.slept_seconds < 30
    assert failures
    if "swap" in kinds:
        assert bucket.objects[MANIFEST].data == manifest
        assert shown(logs["users"]) == records


def test_other_commits_that_always_come_first(bucket: Bucket, opened: Open) -> None:
    """A change of the manifest, a commit and a collection give up after a bounded number of swaps."""
    make_log(opened)
    clock = Sleeps(bucket.clock.now_ms())
    other = LogBucket(bucket.process("other"), clock=clock)
    numbers = count()

    def overtake(request: Request) -> None:
        if request.kind == "swap":
            path = f"{URL}/other-{next(numbers)}"
            other.transaction(lambda files: files.write_atomic(path, b"x"))

    ours = LogBucket(bucket.process("ours", before=overtake), clock=clock)
    orphan = f"{OBJECTS}{'a' * 32}"
    bucket.write(orphan, b"x")
    for change in (
        lambda: ours.pin(1000),
        lambda: ours.transaction(lambda files: files.write_atomic(f"{URL}/ours", b"")),
        lambda: collect(ours, retention_ms=0),
    ):
        before = next(numbers)
        with pytest.raises(BusyError) as refused:
            change()
        assert is_complete(refused.value)
        assert next(numbers) - before < 2 * commit.RUN_ATTEMPTS
    assert orphan in bucket.objects


# ---------------------------------------------------------------- the command line


def test_commands_show_no_traceback(bucket: Bucket, opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    make_log(opened)
    files = dict(opened("r").dirs.newest.files())  # type: ignore[attr-defined]
    key = max((e for path, e in files.items() if path.endswith(".log")), key=lambda e: e.size).object
    whole = dict(bucket.objects)

    def flip(key: str) -> None:
        data = bytearray(bucket.objects[key].data)
        data[len(data) // 2] ^= 1
        bucket.write(key, bytes(data))

    damages: dict[str, Callable[[], object]] = {
        "manifest flipped": lambda: flip(MANIFEST),
        "manifest empty": lambda: bucket.write(MANIFEST, b""),
        "manifest missing": lambda: bucket.objects.pop(MANIFEST),
        "object missing": lambda: bucket.objects.pop(key),
        "object short": lambda: bucket.write(key, whole[key].data[:-1]),
    }
    for name, damage in damages.items():
        damage()
        for command in (["read", URL, "users"], ["verify", URL], ["clean", URL], ["gc", URL, "--dry-run"]):
            code = main.run(command)
            captured = capsys.readouterr()
            assert "Traceback" not in captured.err + captured.out, (name, command)
            if command[0] == "verify" or (command[0] == "read" and name != "object short"):
                assert code in (1, 3), (name, command, captured)
                assert URL in captured.err + captured.out and "fix:" in captured.err + captured.out
        bucket.objects.clear()
        bucket.objects.update(whole)
    assert main.run(["verify", URL]) == 0


REFUSALS = [CredentialsRefusedError.of(URL, "403"), BucketMissingError.of(URL)]
REFUSALS += [ThrottledError.of(URL, "read", "503 SlowDown", write=False), NotPermittedError.verb(URL, "read")]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_commands_name_the_refusal_of_a_store(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: LastwordError
) -> None:
    def refuse(request: Request) -> None:
        raise error

    monkeypatch.setattr(lastword.objects, "open_store", lambda *_: bucket.process(before=refuse))
    for command in (["ls", URL], ["read", URL, "users"], ["verify", URL], ["gc", URL, "--dry-run"]):
        assert main.run(command) == 6
        shown = capsys.readouterr().err
        assert URL in shown and "fix:" in shown and "Traceback" not in shown
    assert not bucket.objects
