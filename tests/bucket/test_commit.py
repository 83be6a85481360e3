"""Commits and collections at single moments: requests of other processes, lost answers, objects that go."""

from __future__ import annotations

import gc
import random
import weakref
import zlib
from collections.abc import Callable

import pytest

from lastword.bucket import commit
from lastword.bucket.collect import collect
from lastword.bucket.commit import Bucket, KeptCopy
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import (
    MANIFEST,
    Changes,
    Entry,
    Layer,
    Manifest,
    ManifestVersion,
    PageRef,
    decode_page,
    encode_page,
)
from lastword.bucket.merge import ChangedMeanwhile, merged
from lastword.clock import ManualClock
from lastword.errors import BusyError, CorruptFileError, UncertainCommitError, UncertainRequestError
from lastword.partition.checkpoint_file import format_lines
from lastword.segment import names
from tests.fakes.objects import Bucket as Store
from tests.fakes.objects import Fault, Request

HOUR_MS = 3_600_000


def opened(store: Store, **hooks: object) -> Bucket:
    """Return the log as a new process opens it."""
    return Bucket(store.process(**hooks), clock=ManualClock())  # type: ignore[arg-type]


def write(bucket: Bucket, name: str, data: bytes | None) -> None:
    """Write or remove one file in a commit."""

    def work(files: BucketFiles) -> None:
        path = f"{bucket.url}/{name}"
        if data is None:
            files.unlink(path)
        else:
            files.write_atomic(path, data)

    bucket.transaction(work)


def at(kind: str, key: str, action: Callable[[Request], object]) -> Callable[[Request], None]:
    """Return a hook that acts once, before the first request of this kind for a key that begins so."""
    waiting = [action]

    def before(request: Request) -> None:
        if waiting and request.kind == kind and request.key.startswith(key):
            waiting.pop()(request)

    return before


def test_a_page_that_is_replaced_and_removed_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "CHANGES_BYTES", 0)
    store = Store()
    write(opened(store), "a", b"1")

    def replace_page(request: Request) -> None:
        write(opened(store), "b", b"2")
        store.objects.pop(request.key)

    reader = opened(store, before=at("get", "objects/", replace_page))
    assert sorted(path for path, _ in reader.load().snapshot.files()) == ["a", "b"]


@pytest.mark.parametrize("fault", [Fault.REPEATED, Fault.LOST])
def test_a_refusal_does_not_say_that_the_commit_is_not_in_the_log(fault: Fault) -> None:
    """The first attempt took effect, and the manifest cannot be read afterwards."""
    store = Store()
    write(opened(store), "a", b"1")
    swaps = 0

    def faults(request: Request) -> Fault | None:
        nonlocal swaps
        swaps += request.kind == "swap"
        if not swaps:
            return None
        if request.kind == "get":
            return Fault.REFUSED
        return fault if request.kind == "swap" and swaps == 1 else None

    with pytest.raises(UncertainCommitError):
        write(opened(store, faults=faults), "b", b"2")
    assert opened(store).load().snapshot.entry("b") is not None


def test_a_read_behind_a_commit_does_not_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the histories: the history has no earlier commit of this process, and an answer was lost."""
    monkeypatch.setattr(commit, "HISTORY", 3)
    store = Store()
    requests: list[str] = []

    def faults(request: Request) -> Fault | None:
        requests.append(request.kind)
        if request.kind == "swap":
            return Fault.REPEATED
        return Fault.REFUSED if requests[-3:] == ["swap", "get", "get"] else None

    answers: list[Callable[[Request], Fault | None]] = [lambda _: None]
    bucket = opened(store, faults=lambda request: answers[-1](request))
    write(bucket, "a", b"1")
    for name in "bcde":
        write(opened(store), name, b"2")
    answers.append(faults)
    bucket.transaction(lambda files: files.write_atomic(f"{bucket.url}/f", b"3"), kept=KeptCopy())
    assert requests == ["get", "swap", "get"]
    assert opened(store).load().snapshot.entry("f") is not None


def test_a_time_that_was_read_before_the_object_lost_its_name() -> None:
    """A collector sleeps for an hour between the store's clock and the manifest."""
    store = Store()
    write(opened(store), "a", bytes(5000))
    entry = opened(store).load().snapshot.entry("a")
    assert entry is not None

    def sleep(_: Request) -> None:
        store.clock.advance(HOUR_MS)
        write(opened(store), "a", None)

    collect(opened(store, before=at("get", MANIFEST, sleep)), retention_ms=HOUR_MS // 2)
    store.clock.advance(HOUR_MS // 4)
    assert collect(opened(store), retention_ms=HOUR_MS // 2).removed_objects == 0
    assert entry.object in store.objects
    store.clock.advance(HOUR_MS // 2)
    collect(opened(store), retention_ms=HOUR_MS // 2)
    assert entry.object not in store.objects


def test_a_commit_that_was_refused_leaves_nothing_for_the_garbage_collector() -> None:
    """Its private copy has up to `MEMORY_BYTES` in memory."""
    store = Store()
    write(opened(store), "a", b"1")
    ours = opened(store, before=at("swap", MANIFEST, lambda _: write(opened(store), "b", b"2")))
    copies: list[weakref.ref[BucketFiles]] = []

    def work(files: BucketFiles) -> None:
        copies.append(weakref.ref(files))
        files.write_atomic(f"{ours.url}/c", b"3")

    gc.disable()
    try:
        ours.transaction(work)
        assert [copy() for copy in copies] == [None, None]
    finally:
        gc.enable()


def test_a_short_commit_of_a_version_that_is_too_old_is_left_to_a_transaction() -> None:
    """An object that it reads is gone: another commit came first, and a collection."""
    store = Store()
    ours, kept = opened(store), KeptCopy()
    for data in (b"1" * 2000, b"2" * 2000):
        ours.transaction(lambda files, data=data: files.write_atomic(f"{ours.url}/a", data), kept=kept)  # type: ignore[misc]
    assert kept.is_alone
    before = ours.load().snapshot.entry("a")
    assert before is not None and before.object is not None
    write(opened(store), "a", b"1")
    store.objects.pop(before.object)

    def entries_of(version: ManifestVersion) -> Changes:
        entry = version.entry("a")
        assert entry is not None
        return {"b": entry._replace(object=None, data=ours.reads.whole(entry))}

    assert not ours.commit_entries(entries_of, kept)  # type: ignore[arg-type]
    assert not kept.is_alone
    assert [path for path, _ in ours.load().snapshot.files()] == ["a"]


def test_the_attempts_of_a_commit_are_an_option_of_the_store() -> None:
    store = Store()
    write(opened(store), "a", b"0")
    swaps = 0

    def others_first(request: Request) -> None:
        nonlocal swaps
        if request.kind == "swap":
            swaps += 1
            write(opened(store), "a", b"%d" % swaps)

    writer = opened(store, before=others_first)
    writer.attempts = 3
    with pytest.raises(BusyError, match="3 times"):
        write(writer, "a", b"mine")
    assert swaps == 3


def test_a_pin_lasts_by_the_clock_of_the_store() -> None:
    """The clock of the reader's machine is late, and the log did not change for long."""
    store = Store()
    write(opened(store), "a", bytes(5000))
    store.clock.advance(48 * HOUR_MS)
    opened(store).pin(HOUR_MS)  # by a clock that stands still
    write(opened(store), "a", None)
    for _ in range(3):
        collect(opened(store), retention_ms=0)
    assert len([key for key in store.objects if len(store.objects[key].data) >= 5000]) == 1


def test_other_collections_remove_what_a_collection_reads() -> None:
    """The object with the store's time, and the condemned list, are gone."""
    store = Store()
    write(opened(store), "a", bytes(5000))
    write(opened(store), "a", None)
    collect(opened(store), retention_ms=HOUR_MS)

    def collect_before(_: Request) -> None:
        for _ in range(3):
            collect(opened(store), retention_ms=0)

    for hook in (
        at("facts", "objects/", collect_before),
        at("get", "objects/", collect_before),
    ):
        store.clock.advance(2 * HOUR_MS)
        write(opened(store), "a", bytes(5000))
        write(opened(store), "a", None)
        collect(opened(store), retention_ms=HOUR_MS)
        collect(opened(store, before=hook), retention_ms=HOUR_MS)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST])
def test_a_deletion_without_an_answer_is_sent_again(fault: Fault) -> None:
    store, deletions = Store(), 0
    write(opened(store), "a", bytes(5000))
    write(opened(store), "a", None)
    collect(opened(store), retention_ms=0)
    store.clock.advance(HOUR_MS)

    def faults(request: Request) -> Fault | None:
        nonlocal deletions
        deletions += request.kind == "delete"
        return fault if request.kind == "delete" and deletions % 2 else None

    assert collect(Bucket(store.process(faults=faults), clock=ManualClock()), retention_ms=0).removed_objects
    assert deletions == 4


def _version(files: Changes) -> ManifestVersion:
    return ManifestVersion(Manifest("n", changes=files))


def _inline(data: bytes) -> Entry:
    return Entry(1, len(data), 0, data=data)


def _lines(*lines: str) -> Entry:
    return _inline(format_lines(list(lines)))


PARTITION: Changes = {"t-0/partition.metadata": _inline(b"id"), f"t-0/{10:020}.log": _inline(b"")}
BASE: Changes = {**PARTITION, names.LOG_STARTS: _lines()}
REMOVED: Changes = dict.fromkeys(PARTITION)
APPENDED: Changes = {f"t-0/{10:020}.log": _inline(b"r"), f"t-0/{11:020}.log": _inline(b"")}
TRIMMED: Changes = {f"t-0/{names.PRIVATE}/{names.LOG_START_NOTE}": _inline(b"{}")}
LINE: Changes = {names.LOG_STARTS: _lines("t 0 10")}
OTHER_LINE: Changes = {names.RECOVERY_POINTS: _lines("u 0 5")}
OF_T: Changes = {"lastword.topic-t.toml": _inline(b"flush.ms = 1")}
OF_U: Changes = {"lastword.topic-u.toml": _inline(b"flush.ms = 2"), "u-0/partition.metadata": _inline(b"i")}
OF_ALL: Changes = {names.SETTINGS: _inline(b"")}
MADE = [
    {f"t-0/{names.PRIVATE}/{name}": _inline(b"{}")}
    for name in (names.SUMMARY, names.KEYS, f"{names.KEY_RUN}0")
]


@pytest.mark.parametrize(
    ("pairs", "hold_together"),
    [
        ([(OF_T, OF_U), (OF_U, OF_T), (OF_U, OF_ALL), (OF_U, REMOVED), (APPENDED, OF_U)], True),
        ([(OF_T, OF_T), (OF_ALL, OF_ALL), (APPENDED, OF_T), (APPENDED, OF_ALL)], False),
        ([(REMOVED, OF_T), (OF_T, REMOVED)], False),
        ([(TRIMMED, made) for made in MADE], True),
        ([pair for made in MADE for pair in ((REMOVED, made), (made, REMOVED))], False),
        ([(OTHER_LINE, REMOVED)], True),
        ([(REMOVED, LINE), (LINE, REMOVED)], False),
    ],
    ids=[
        "settings of different topics",
        "settings of the same topic",
        "settings of a topic that is removed: a new topic of that name would get them",
        "derived files that are made while a partition is trimmed",
        "a file that is made in a partition while it is removed: a directory without an id would be left",
        "lines of different partitions",
        "a log start of a topic that is removed: it would hide the records of the next topic of this name",
    ],
)
def test_two_commits_hold_together(pairs: list[tuple[Changes, Changes]], hold_together: bool) -> None:
    base = _version(BASE)
    for ours, theirs in pairs:
        now = {name: entry for name, entry in {**BASE, **theirs}.items() if entry is not None}
        if hold_together:
            assert merged(base, ours, _version(now), lambda entry: entry.data) == ours
        else:
            with pytest.raises(ChangedMeanwhile):
                merged(base, ours, _version(now), lambda entry: entry.data)


def test_a_version_in_pages_has_the_files_of_one_map() -> None:
    rng = random.Random(1)
    paths = [
        f"{directory}{name}"
        for directory in ("", "t-0/", "t-0/lastword/", "u-0/", "v/w/x/")
        for name in "abc"
    ]

    def entries(share: float, *, removed: bool) -> Changes:
        return {
            path: None if removed and rng.random() < 0.6 else Entry(rng.randrange(9), 0, 0)
            for path in paths
            if rng.random() < share
        }

    def version(
        layers: list[tuple[PageRef, bytes]], changes: Changes
    ) -> tuple[ManifestVersion, dict[str, Entry]]:
        manifest = Manifest("n", pages=tuple(page for page, _ in layers), changes=changes)
        snapshot = ManifestVersion(manifest, tuple(decode_page(data, "page", page) for page, data in layers))
        flat: dict[str, Entry | None] = {}
        for page, data in layers:
            flat.update(decode_page(data, "page", page).entries())
        flat.update(changes)
        return snapshot, {path: entry for path, entry in flat.items() if entry is not None}

    for number in range(300):
        pages = []
        for level in range(3):
            content = entries(0.5, removed=level > 0)
            count, data = encode_page([Layer(content)], oldest=False)
            assert count == len(content)
            pages.append((PageRef(f"objects/{number}-{level}", count, len(data)), data))
        before, before_files = version(pages[: rng.randrange(1, 3)], entries(0.2, removed=True))
        after, after_files = version(pages[: rng.randrange(1, 4)], entries(0.2, removed=True))
        one_map = ManifestVersion(Manifest("n", changes=after_files))
        directories = {path.rpartition("/")[0] for path in paths} | {"", "v", "v/w", "none"}
        for directory in rng.sample(sorted(directories), 3):
            assert after.children(directory) == one_map.children(directory)
        assert [after.entry(path) for path in paths] == [after_files.get(path) for path in paths]
        assert dict(after.files()) == after_files
        changed = {path for path in paths if before_files.get(path) != after_files.get(path)}
        assert after.changed_since(before) == changed


def test_a_page_that_replaces_others_has_their_newest_entries() -> None:
    rng = random.Random(1)
    paths = [f"{directory}{name}" for directory in ("", "t-0/", "u-0/", "v-0/") for name in "abc"]
    copied = 0
    for number in range(300):
        layers: list[Layer] = []  # newest first
        contents: list[dict[str, Entry | None]] = []
        for level in range(rng.randrange(1, 4)):
            inside = [path for path in paths if rng.random() < 0.8 or not path.startswith("u-0")]
            content: dict[str, Entry | None] = {
                path: None if level and rng.random() < 0.5 else Entry(rng.randrange(9), 0, 0)
                for path in inside
                if rng.random() < 0.3
            }
            count, data = encode_page([Layer(content)], oldest=False)
            page = PageRef(f"objects/{number}-{level}", count, len(data))
            layers.insert(0, decode_page(data, "page", page))
            contents.append(content)
        for layer in layers[:-1]:
            for directory in rng.sample(["t-0", "u-0"], 1):
                layer.files(directory)  # another thread may have decoded it
        oldest = rng.random() < 0.5
        flat = {path: entry for content in contents for path, entry in content.items()}
        if oldest:
            flat = {path: entry for path, entry in flat.items() if entry is not None}
        count, data = encode_page(layers, oldest=oldest)
        merged_page = decode_page(data, "page", PageRef("page", count, len(data)))
        assert dict(merged_page.entries()) == flat and count == len(flat)
        copied += sum(
            layer.text(directory) is not None for layer in layers for directory in layer.with_entries()
        )
    assert copied


def test_a_commit_encodes_the_entries_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    bucket = opened(store)
    for number in range(50):
        write(bucket, f"a{number}", b"%d" % number)
    encoded: list[Entry] = []
    to_json = Entry.to_json
    monkeypatch.setattr(Entry, "to_json", lambda entry: encoded.append(entry) or to_json(entry))
    write(bucket, 'b"\u00e9', b"the only change")
    assert [entry.data for entry in encoded] == [b"the only change"]
    manifest = opened(store).load().manifest
    assert manifest == bucket.load().manifest
    assert len(manifest.changes) == 51


def test_a_directory_of_a_page_is_decoded_when_it_is_used() -> None:
    _, data = encode_page([Layer({"t-0/a": Entry(1, 0, 0), "u-0/a": Entry(2, 0, 0)})], oldest=True)
    for damaged, entries, reason in (
        (zlib.compress(zlib.decompress(data).replace(b"[2,", b"[3,")), 2, "checksum"),
        (zlib.decompress(data), 2, "decompressed"),
        (data, 3, "2 entries, and 3"),
        (data[:-1], 2, "were written"),
    ):
        with pytest.raises(CorruptFileError, match=reason):
            size = len(data) if reason == "were written" else len(damaged)
            decode_page(damaged, "page", PageRef("page", entries, size))
    texts = {"t-0": (1, '{"a": [1, 0, 0, ""]}'), "u-0": (1, "["), "v-0": (2, '{"a": null}')}
    layer = Layer({}, texts, "memory://x/objects/1")
    assert layer.files("t-0") == {"a": Entry(1, 0, 0)} and layer.has("u-0") and not layer.files("w-0")
    for directory in ("u-0", "v-0"):
        with pytest.raises(CorruptFileError) as raised:
            layer.files(directory)
        assert raised.value.file == "memory://x/objects/1"


# ---------------------------------------------------------------- reads that fail, and torn reads


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.THROTTLED, Fault.TORN])
def test_a_read_that_fails_stops_no_change(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that breaks off, a server error, bytes of two versions: a read has no effect and is repeated."""
    reads = 0
    for number in range(1, 12):
        store = Store()
        monkeypatch.setattr(commit, "CHANGES_BYTES", 0)
        write(opened(store), "first", b"1" * 20_000)
        other = opened(store)

        def faults(request: Request, number: int = number, other: Bucket = other) -> Fault | None:
            if request.number != number or request.kind not in ("get", "range"):
                return None
            if fault is Fault.TORN and request.kind == "range":
                return None
            if request.key == MANIFEST:  # the commit of another process is why the body breaks
                write(other, "other", b"%d" % number)
            return fault

        bucket = opened(store, faults=faults)
        bucket.load()
        write(bucket, "mine", b"1" * 20_000)
        write(bucket, "mine", b"2" * 20_000)
        files = opened(store).files(opened(store).load().snapshot)
        assert files.read_bytes(f"{bucket.url}/mine") == b"2" * 20_000
        reads += sum(request.outcome == fault.name for request in store.log)
    assert reads >= 4


def test_a_read_that_always_fails_is_an_error() -> None:
    store = Store()
    write(opened(store), "a", b"1")
    for fault in (Fault.REFUSED, Fault.TORN):
        other = opened(store)

        def faults(request: Request, fault: Fault = fault, other: Bucket = other) -> Fault | None:
            if fault is Fault.TORN and request.kind == "get":
                write(other, "a", b"n%d" % request.number)  # each read has other bytes
            return fault if request.kind == "get" else None

        before = len(store.log)
        with pytest.raises(UncertainRequestError):
            opened(store, faults=faults).load()
        assert len(store.log) - before < 200


def test_damage_is_the_same_bytes_of_the_same_version_twice() -> None:
    store = Store()
    bucket = opened(store)
    write(bucket, "a", b"1")
    store.write(MANIFEST, store.objects[MANIFEST].data[:-3])
    before = store.requests["get"]
    with pytest.raises(CorruptFileError):
        bucket.load()
    assert store.requests["get"] == before + 2
