"""Plant faults in the commit protocol: the judge of the histories must report each by the right rule."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lastword.bucket import collect, commit, merge, tenure
from lastword.bucket import files as bucket_files
from lastword.bucket.commit import Bucket, KeptCopy, Loaded, PrivateCopy
from lastword.bucket.manifest import MANIFEST, Entry, Manifest, Servers
from lastword.bucket.merge import ChangedMeanwhile
from lastword.bucket.scratch import LocalFile
from lastword.bucket.servers import ServerSession
from lastword.bucket.tenure import Role, Tenure
from lastword.errors import ObjectTakenError, ObjectVanishedError, SwapRefusedError, UncertainRequestError
from lastword.keys import manifest as keys
from lastword.objects import ObjectVersion, StoredObject
from lastword.partition.removal_log import EVERYTHING, RemovalLog
from lastword.segment import names
from tests.bucket import histories
from tests.bucket.histories import HOUR_MS, Violation, World
from tests.fakes.objects import POSSIBLE, FakeStore, Fault, Weakness

Patch = pytest.MonkeyPatch


def caught(*rules: str, first: int = 0, seeds: int = 1500, **given: Any) -> None:
    """Check that a history violates one of the rules; without the fault none does (test_histories.py).

    `first` is the first seed, a little before the one that is known to show the fault.
    """
    violated: set[str] = set()
    for seed in range(first, first + seeds):
        try:
            histories.run(seed, **given)
        except Violation as violation:
            violated.add(violation.rule)
            if violation.rule in rules:
                return
    raise AssertionError(f"one of {rules} should have named it; violated: {sorted(violated)}")


# ---------------------------------------------------------------- the swap


class Numbered(FakeStore):
    """A store in which each version has a number, and old numbers are removed."""

    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        if key != MANIFEST:
            return super().get(key, unless=unless)
        while True:
            newest = max((facts.key for facts in self.list("manifests")), default=None)
            if newest is None:
                raise ObjectVanishedError.of(key)
            if unless is not None and unless.version == newest:
                return None
            try:
                stored = super().get(newest)
            except ObjectVanishedError:
                continue
            assert stored is not None
            return StoredObject(stored.data, ObjectVersion(None, newest), stored.modified_ms)

    def create(self, key: str, data: Any) -> ObjectVersion:
        number = f"manifests/{1:08}"
        super().create(number, data)
        return ObjectVersion(None, number)

    def swap(self, key: str, data: Any, version: ObjectVersion) -> ObjectVersion:
        assert version.version is not None
        number = int(version.version[-8:]) + 1
        try:
            super().create(f"manifests/{number:08}", data)
        except ObjectTakenError:
            raise SwapRefusedError.of(key) from None
        self.delete([f"manifests/{number - 1:08}"])
        return ObjectVersion(None, f"manifests/{number:08}")


def test_manifests_with_numbers_that_are_removed(monkeypatch: Patch) -> None:
    """A writer that slept makes a number again; the swap succeeds, and no process reads that version."""
    write = World.write

    def judged(world: World, key: str, data: bytes) -> Any:
        newest = max((other for other in world.objects if other.startswith("manifests/")), default="")
        version = write(world, key, data)
        if key.startswith("manifests/") and key > newest:
            world.judge.swapped(data)
        return version

    monkeypatch.setattr(World, "write", judged)
    caught("lost record", store=Numbered, empty=True, only=["writer"] * 4)


def test_a_refusal_that_is_trusted(monkeypatch: Patch) -> None:
    """The store refuses the repetition of a swap that took effect."""
    real = Bucket.swap

    def swap(bucket: Bucket, base: Loaded, manifest: Manifest) -> Loaded | None:
        try:
            if base.version is None:
                bucket.store.create(MANIFEST, manifest.encode())
            else:
                bucket.store.swap(MANIFEST, manifest.encode(), base.version)
            return None
        except (SwapRefusedError, ObjectTakenError):
            return bucket.load()
        except commit.UncertainRequestError:
            return real(bucket, base, manifest)

    monkeypatch.setattr(Bucket, "swap", swap)
    caught("twice", first=210)


def test_versions_with_the_same_bytes(monkeypatch: Patch) -> None:
    """A late swap takes effect because an older version with the same bytes is current again."""
    encode, decode = Manifest.encode, Manifest.decode

    def encoded(manifest: Manifest) -> bytes:
        return encode(replace(manifest, nonce="", history=()))

    def decoded(data: bytes, url: str) -> Manifest:
        nonce = hashlib.md5(data).hexdigest()
        return replace(decode(data, url), nonce=nonce, history=(nonce,))

    def following(bucket: Bucket, manifest: Manifest) -> Manifest:
        nonce = hashlib.md5(encoded(manifest)).hexdigest()
        return replace(manifest, nonce=nonce, history=(nonce,))

    monkeypatch.setattr(Manifest, "encode", encoded)
    monkeypatch.setattr(Manifest, "decode", decoded)
    monkeypatch.setattr(Bucket, "following", following)
    monkeypatch.setattr(commit, "_follows", lambda current, base: True)
    monkeypatch.setattr(bucket_files.Numbers, "next", lambda self: 1)
    caught(
        "twice",
        "refused record",
        weaknesses=[Weakness.DIGEST_ETAGS],
        faults=[Fault.LATE],
        only=["writer", "writer", "lessee", "dropper", "dropper"],
        first=70,
    )


def test_changes_of_the_same_settings_that_hold_together(monkeypatch: Patch) -> None:
    real = merge._both

    def both(path: str, base: Any, entry: Any, theirs: Any, read: Any) -> Any:
        return entry if path.endswith(".toml") else real(path, base, entry, theirs, read)

    monkeypatch.setattr(merge, "_both", both)
    monkeypatch.setattr(merge, "_rewritten", lambda *_: set())
    caught("settings", only=["setter", "setter"])


def test_a_swap_without_the_history_of_nonces(monkeypatch: Patch) -> None:
    """Another commit follows before the writer that lost an answer reads the manifest."""
    real = Bucket.following

    def following(bucket: Bucket, manifest: Manifest) -> Manifest:
        manifest = real(bucket, manifest)
        return replace(manifest, history=(manifest.nonce,))

    monkeypatch.setattr(Bucket, "following", following)
    monkeypatch.setattr(commit, "_follows", lambda current, base: True)
    caught("twice", first=285)


def test_an_upload_that_is_named_before_it_is_complete(monkeypatch: Patch) -> None:
    upload, swap = Bucket.upload, Bucket.swap
    late: list[tuple[str, Any]] = []

    class Later:
        def put(self, key: str, data: Any) -> None:
            late.append((key, b"".join(data)))

        def put_file(self, key: str, path: str) -> None:
            late.append((key, commit.DEFAULT.read_bytes(path)))

    def upload_later(bucket: Bucket, changes: Any) -> Any:
        store, bucket.store = bucket.store, Later()  # type: ignore[assignment]
        try:
            return upload(bucket, changes)
        finally:
            bucket.store = store

    def swap_first(bucket: Bucket, base: Loaded, manifest: Manifest) -> Loaded | None:
        current = swap(bucket, base, manifest)
        while late:
            bucket.store.put(*late.pop())
        return current

    monkeypatch.setattr(Bucket, "upload", upload_later)
    monkeypatch.setattr(Bucket, "swap", swap_first)
    caught("missing object")


# ---------------------------------------------------------------- merges


def test_a_merge_of_two_appends(monkeypatch: Patch) -> None:
    real = merge._both

    def both(path: str, base: Any, entry: Entry | None, theirs: Any, read: Any) -> Entry | None:
        try:
            return real(path, base, entry, theirs, read)
        except ChangedMeanwhile:
            return entry

    monkeypatch.setattr(merge, "_both", both)
    caught("lost record", "offsets")


def test_a_merge_that_ignores_leases(monkeypatch: Patch) -> None:
    """A cleaning that began before a lease removes a tombstone that the lease keeps."""
    real = merge._of_append

    def of_append(name: str, entry: Entry | None, last_log: str) -> bool:
        return names.LEASE in name or real(name, entry, last_log)

    monkeypatch.setattr(merge, "_of_append", of_append)
    caught("lease", first=110)


# ---------------------------------------------------------------- collections


def test_a_removal_by_the_clock_of_the_machine(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Bucket, "store_now_ms", lambda bucket: bucket.clock.now_ms())
    caught("retention", "pin", first=705)


def test_a_time_from_before_the_version(monkeypatch: Patch) -> None:
    """A collector sleeps between the store's clock and the version in which the object has no name."""
    clock, load = Bucket.store_now_ms, Bucket.load
    times: dict[Bucket, int] = {}

    def load_after_the_clock(bucket: Bucket) -> Loaded:
        times[bucket] = clock(bucket)
        return load(bucket)

    def collect_by_an_earlier_time(bucket: Bucket, **given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bucket, "load", lambda: load_after_the_clock(bucket))
            patch.setattr(bucket, "store_now_ms", lambda: times[bucket])
            return collect.collect(bucket, **given)

    monkeypatch.setattr(histories, "collect", collect_by_an_earlier_time)
    caught("retention", "pin", first=770)


def test_a_collection_without_a_number(monkeypatch: Patch) -> None:
    """An upload under way is removed, and gets a name."""

    def without_number(manifest: Any, *, collection: int = 0, **changes: Any) -> Any:
        return replace(manifest, **changes)

    monkeypatch.setattr(collect, "replace", without_number)
    caught("missing object", first=420)


def test_a_collection_that_ignores_uploads_under_way(monkeypatch: Patch) -> None:
    """The tasks of a job upload, and the objects are removed before the commit of the job."""
    real = collect._decide

    def decide(loaded: Loaded, *given: Any, **named: Any) -> Any:
        manifest = replace(loaded.manifest, uploads={})
        return real(
            replace(loaded, snapshot=commit.ManifestVersion(manifest, loaded.snapshot.layers[:0:-1])),
            *given,
            **named,
        )

    monkeypatch.setattr(collect, "_decide", decide)
    caught("missing object", only=["uploader", "uploader", "collector", "collector"], first=170)


def test_a_time_that_is_kept_although_the_object_got_a_name(monkeypatch: Patch) -> None:
    """A collector whose swap was refused condemns what was without a name in the older version."""
    real = collect._decide
    first: list[tuple[Sequence[Any], Loaded]] = []

    def decide(
        loaded: Loaded, before: Mapping[str, int], listed: Sequence[Any], *given: Any, **named: Any
    ) -> Any:
        if not first or first[-1][0] is not listed:
            first[:] = [(listed, loaded)]
        decision = real(loaded, before, listed, *given, **named)
        stale = real(first[-1][1], before, listed, *given, **named)
        removed = {facts.key for facts in decision.removed}
        kept = {key: since for key, since in {**stale.waiting, **before}.items() if key not in removed}
        waiting = {**kept, **decision.waiting}
        return replace(decision, waiting=waiting, new=len(waiting.keys() - before.keys()))

    monkeypatch.setattr(collect, "_decide", decide)
    only = ["writer", "writer", "cleaner", "collector", "collector"]
    given = {"retention_ms": HOUR_MS // 2, "pause_rate": 0.12, "only": only}
    reads = tuple(fault for fault in POSSIBLE["get"] if fault is not Fault.TORN)
    monkeypatch.setitem(POSSIBLE, "get", reads)  # type: ignore[index]  # of the seed that shows the fault
    caught("retention", "pin", first=670, **given)


# ---------------------------------------------------------------- reads, and stores that are not as they say


def test_a_read_that_is_not_repeated(monkeypatch: Patch) -> None:
    """The body of a manifest breaks off while another process commits, and the append fails for good."""
    monkeypatch.setattr(Bucket, "again", lambda bucket, read: read())
    caught("a read stops a step")


def test_a_torn_read_that_is_called_damage(monkeypatch: Patch) -> None:
    monkeypatch.setattr(commit, "TORN_READS", 0)
    caught("a read stops a step", faults=[Fault.TORN])


def test_a_store_that_checks_and_writes_in_two_steps() -> None:
    """The probe refuses such a store (tests/objects/test_double.py): the protocol cannot withstand it."""
    caught("lost record", "lost commit", "twice", weaknesses=[Weakness.TWO_STEPS], only=["writer"] * 3)


# ---------------------------------------------------------------- the copy that is kept


def test_a_copy_of_an_older_version_that_is_kept(monkeypatch: Patch) -> None:
    """Its next commit would be one to the newer version, and hide what another process did."""

    def take(kept: KeptCopy, base: Loaded) -> PrivateCopy | None:
        copy, kept._copy = kept._copy, None
        if copy is not None:
            copy.base = base
        return copy

    monkeypatch.setattr(KeptCopy, "take", take)
    caught("checkpoint", "lost record", "offsets", first=370)


def test_a_copy_that_is_kept_although_another_commit_was_merged(monkeypatch: Patch) -> None:
    def rebased(ours: commit._Commit) -> Loaded:
        newest = ours._bucket.committed()
        ours._copy.files.rebase(newest.snapshot, ours._entries)
        return newest

    monkeypatch.setattr(commit._Commit, "rebased", rebased)
    caught("checkpoint", "lost record", "lost lease", "offsets", first=420)


def test_an_open_file_whose_changes_after_a_commit_are_not_stored(monkeypatch: Patch) -> None:
    real = LocalFile.write

    def write(file: LocalFile, data: memoryview, position: int) -> bool:
        was_stored = file.is_stored
        written = real(file, data, position)
        file.is_stored = was_stored
        return written

    monkeypatch.setattr(LocalFile, "write", write)
    caught("lost record", "checkpoint")


# ---------------------------------------------------------------- entries without a private copy


def test_entries_of_a_version_that_are_swapped_into_a_newer_one(monkeypatch: Patch) -> None:
    """They begin at the log end of the older version, where another process has appended meanwhile."""
    real = Bucket.swap

    def swap(bucket: Bucket, base: Loaded, manifest: Manifest) -> Loaded | None:
        newer = real(bucket, base, manifest)
        if newer is None or bucket not in calling:
            return newer
        entries = {
            path: entry for path, entry in manifest.changes.items() if path not in base.manifest.changes
        }
        again = bucket.next_manifest(newer.snapshot, entries, commit.CHANGES_BYTES)
        return real(bucket, newer, replace(again, nonce=manifest.nonce))

    calling: list[Bucket] = []
    during(monkeypatch, calling)
    monkeypatch.setattr(Bucket, "swap", swap)
    caught("lost record", "offsets", "checkpoint", "twice")


def test_entries_that_are_sent_again_because_an_answer_was_lost(monkeypatch: Patch) -> None:
    """A transaction follows that appends the same records."""
    real = Bucket.swap

    def swap(bucket: Bucket, base: Loaded, manifest: Manifest) -> Loaded | None:
        if bucket not in calling or base.version is None:
            return real(bucket, base, manifest)
        try:
            bucket.store.swap(MANIFEST, manifest.encode(), base.version)
        except (SwapRefusedError, UncertainRequestError):
            return base
        return None

    calling: list[Bucket] = []
    during(monkeypatch, calling)
    monkeypatch.setattr(Bucket, "swap", swap)
    caught("twice", "refused record", first=100)


def during(monkeypatch: Patch, calling: list[Bucket]) -> None:
    """Let a list have the buckets whose processes commit entries."""
    real = Bucket.commit_entries

    def commit_entries(bucket: Bucket, *given: Any) -> bool:
        calling.append(bucket)
        try:
            return real(bucket, *given)
        finally:
            calling.remove(bucket)

    monkeypatch.setattr(Bucket, "commit_entries", commit_entries)


# ---------------------------------------------------------------- saved key indexes

GETTERS = ["writer", "writer", "cleaner", "cleaner", "getter", "getter"]


def test_an_index_of_another_incarnation(monkeypatch: Patch) -> None:
    """A cleaner saves an index while the partition is removed and made again."""
    monkeypatch.setattr(keys.Manifest, "fits", lambda index, view: index.end <= view.log_end)
    caught("get", only=[*GETTERS, "dropper", "dropper"], first=210)


def test_an_index_with_an_entry_above_a_cut(monkeypatch: Patch) -> None:
    """A cleaner saves an index while the log is cut, and the log grows again."""
    monkeypatch.setattr(keys.Witness, "testifies", lambda *_: True)
    monkeypatch.setattr(RemovalLog, "cut_since", lambda *_: EVERYTHING)
    caught("get", only=[*GETTERS, "cutter", "cutter"], first=65)


def test_an_index_that_hides_what_is_above_it(monkeypatch: Patch) -> None:
    real = histories.View.records
    monkeypatch.setattr(histories.View, "records", lambda view, start=0: [] if start else real(view))
    caught("get", only=GETTERS)


def test_an_index_without_its_run(monkeypatch: Patch) -> None:
    real = keys.remove_others
    monkeypatch.setattr(keys, "remove_others", lambda files, directory, kept: real(files, directory, ()))
    caught("read", only=GETTERS)


def test_a_collection_of_runs_in_use(monkeypatch: Patch) -> None:
    real = collect._decide

    def decide(loaded: Loaded, *given: Any, **named: Any) -> Any:
        snapshot = commit.ManifestVersion(loaded.manifest, loaded.snapshot.layers[:0:-1])
        runs = {entry.object for path, entry in snapshot.files() if names.KEY_RUN in path}
        kept = {key for key in snapshot.objects() if key not in runs}
        monkeypatch.setattr(snapshot, "objects", lambda: kept)
        return real(replace(loaded, snapshot=snapshot), *given, **named)

    monkeypatch.setattr(collect, "_decide", decide)
    caught("missing object", only=[*GETTERS, "collector", "collector"], retention_ms=0)


# ---------------------------------------------------------------- the active server

SERVERS = ["server", "server", "server", "writer", "collector"]


def test_a_commit_without_the_epoch(monkeypatch: Patch) -> None:
    """A server that slept while another one took over commits to the newer version."""

    def renewed(tenure: Tenure, servers: Servers, url: str) -> Servers:
        return replace(servers, renewals=servers.renewals + bool(tenure.epoch))

    monkeypatch.setattr(Tenure, "renewed", renewed)
    caught("fence", only=SERVERS)


def test_a_takeover_by_the_date(monkeypatch: Patch) -> None:
    """The active server writes the date of its renewal; a standby compares it with its own date."""
    dates: dict[tuple[str, int], int] = {}
    renewed, role = Tenure.renewed, ServerSession.role.fget
    assert role is not None

    def dated(tenure: Tenure, servers: Servers, url: str) -> Servers:
        following = renewed(tenure, servers, url)
        dates[following.session, following.renewals] = clocks[tenure].now_ms()
        return following

    def by_date(session: ServerSession) -> Role:
        tenure, clock = session.tenure, session._bucket.clock
        clocks[tenure] = clock
        known = dates.get((tenure.servers.session, tenure.servers.renewals))
        is_late = known is not None and clock.now_ms() - known > tenure.servers.timeout_ms
        return Role.DUE if is_late and not tenure.epoch else role(session)

    clocks: dict[Tenure, Any] = {}
    monkeypatch.setattr(Tenure, "renewed", dated)
    monkeypatch.setattr(ServerSession, "role", property(by_date))
    caught("answer", first=70, only=SERVERS)


def test_a_server_that_answers_for_too_long(monkeypatch: Patch) -> None:
    monkeypatch.setattr(tenure, "ANSWERING", 2.0)
    caught("answer", first=555, only=SERVERS)


def test_a_takeover_of_a_version_that_was_not_read(monkeypatch: Patch) -> None:
    """A standby slept, and takes over without a look at what the active server did meanwhile."""

    def taken_over(session: ServerSession, servers: Servers) -> Servers:
        joined = servers.joined(session._address, "")
        return joined.taken_over(session._address, session.tenure.session, session.tenure.timeout_ms)

    monkeypatch.setattr(ServerSession, "_taken_over", taken_over)
    caught("answer", first=570, only=SERVERS)
