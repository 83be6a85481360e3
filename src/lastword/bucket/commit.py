"""`Bucket`: the versions of one log in a bucket, and the transactions that make a new one.

A transaction takes the newest version, changes it in private (`BucketFiles`), uploads the new files and swaps
the manifest. The swap is conditional: it fails if another commit came first. Then there are two cases.

* The two commits changed different things (`merged`): other partitions, or one appended to a partition while
  the other cleaned it. Both hold, and the swap is tried again on the other's version. No data is sent again.
* They changed the same thing, two appends to a partition for example. The transaction runs again from its
  beginning, on the new version: offsets are assigned again, and a named batch that the other commit brought
  is recognized.

A short commit (`Bucket.commit_entries`) has no private copy: its entries are computed from the newest
version. If its swap is refused, nothing of it is merged; a transaction follows.

**The answer of a swap is never trusted.** A 412 can be caused by a client's own first attempt, whose answer
was lost; a timeout says nothing. After every error the manifest is read: the commit is in the log if, and
only if, the history of nonces has its own. The same bytes are sent again only as long as the manifest is the
one that the condition names, so an attempt that arrives late either is this commit, or is refused.

**Uploads and collections.** A collection removes objects that no manifest names. It could remove those of a
commit that is under way, so it first swaps the manifest with a higher `collection`. A commit that finds a
higher number than the one under which it uploaded sends its objects again, under new names.

**The active server.** The manifest names it, with an epoch (`lastword.bucket.tenure`). A process that became
it makes each next manifest from one of its epoch, or from none: the condition of the swap is that of the
epoch. The commits of other processes keep the servers as they are.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lastword.bucket.files import BucketFiles, Node, PatchedFile
from lastword.bucket.manifest import (
    CHANGES_BYTES,
    CHECKPOINT_BYTES,
    HISTORY,
    INLINE_BYTES,
    LONG_CHANGES_BYTES,
    MANIFEST,
    MAX_PAGES,
    OBJECTS,
    PAGE_POWER,
    SUMMARY_BYTES,
    Changes,
    Entry,
    Layer,
    Manifest,
    ManifestVersion,
    PageRef,
    Patch,
    PatchRef,
    Pin,
    decode_page,
    encode_page,
    lost_manifest,
    lost_object,
)
from lastword.bucket.merge import CHECKPOINTS, ChangedMeanwhile, merged
from lastword.bucket.reading import ObjectReads
from lastword.bucket.scratch import LocalFile, ScratchSpace
from lastword.clock import Clock, SystemClock
from lastword.errors import (
    BusyError,
    CorruptFileError,
    FileVanishedError,
    LastwordError,
    ObjectTakenError,
    ObjectVanishedError,
    SwapRefusedError,
    UncertainCommitError,
    UncertainRequestError,
    UploadsGoneError,
)
from lastword.files.interface import Buffer
from lastword.objects.interface import ObjectStore, ObjectVersion, StoredObject
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.bucket.tenure import Tenure

T = TypeVar("T")

BUNDLE_BYTES = 8 << 20
"""Smaller files of a commit share objects of about this size: a commit to 2,000 partitions is one upload."""
UPLOADS = 8
"""Objects that are uploaded at the same time."""
SWAP_ATTEMPTS = 12
"""Attempts of one swap while the manifest does not change."""
CONFIRMED_SECONDS = 1.0
"""For so long a swap may begin with a version that was the newest. After a longer time the version is read
again, so that the history of the one that refuses the swap shows every commit since: other processes would
have to commit more than `HISTORY` times in this time."""
KEPT_BYTES = 1 << 20
"""A private copy with more new bytes is not kept for the next transaction."""
READ_ATTEMPTS = 5
READ_AGAIN_SECONDS = 10.0
"""A read that has failed for this long is not repeated."""
TORN_READS = 20
"""Reads of the manifest with different bytes that are no manifest: some stores answer a read beside a write
with bytes of two versions. The same bytes of the same version twice are damage."""
RUN_ATTEMPTS = 64
"""How often a transaction runs, or a swap is tried on newer versions, unless the store states a number."""
ENTRY_BYTES = 64
"""About the bytes of an entry in a manifest, besides its path and its data."""
CLOCK_OBJECT = b"clock"
"""Content of an object that is written for its time. Every other object is larger."""
FIRST_WAIT_SECONDS = 0.02
LONGEST_WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A version as it was read: the snapshot, and what a swap of it is conditional on.

    Attributes:
        snapshot: The files.
        version: The store's version of the manifest; None: there is no manifest yet.
        modified_ms: When it was swapped in, by the store's clock, or earlier.
        is_own: This process swapped it in, and `modified_ms` is that of an earlier version.
    """

    snapshot: ManifestVersion
    version: ObjectVersion | None
    modified_ms: int = 0
    is_own: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the snapshot."""
        return self.snapshot.manifest


@dataclass(slots=True)
class PrivateCopy:
    """A version, and the files in which a transaction changes it.

    Attributes:
        base: The version.
        files: Its files, with the changes.
        scratch: The room of new files.
    """

    base: Loaded
    files: BucketFiles
    scratch: ScratchSpace

    def close(self) -> None:
        """Remove the scratch directory."""
        self.scratch.close()


class KeptCopy:
    """A private copy that is kept from one transaction to the next while no other commit comes between.

    For one thread at a time. Its memory is bounded: one with more than `KEPT_BYTES` of new bytes is dropped.

    Attributes:
        is_alone: No other commit came during the last transaction, so the next one begins without a request.
        nonce: That of the version which the last transaction or short commit made; "": there is none.
    """

    def __init__(self) -> None:
        self.is_alone = False
        self.nonce = ""
        self._copy: PrivateCopy | None = None
        self._was_overtaken = False  # in this transaction

    def take(self, base: Loaded) -> PrivateCopy | None:
        """Return the copy if it is one of the version `base`, else drop it."""
        copy, self._copy = self._copy, None
        if self.nonce and self.nonce != base.manifest.nonce and not base.is_own:
            self.overtaken()
        if copy is not None and copy.base.manifest.nonce != base.manifest.nonce:
            copy.close()
            return None
        return copy

    def overtaken(self) -> None:
        """Take note that another commit came first."""
        self.is_alone, self._was_overtaken = False, True

    def keep(self, copy: PrivateCopy, base: Loaded | None) -> bool:
        """Keep a copy whose changes are in `base`; None: other changes are in that version, too."""
        self.is_alone = base is not None and not self._was_overtaken
        self.nonce = "" if base is None else base.manifest.nonce
        self._was_overtaken = False
        if base is None or not copy.scratch.holds_at_most(KEPT_BYTES):
            return False
        copy.base = base
        self._copy = copy
        return True

    def drop(self) -> None:
        """Drop the copy. A second call does nothing."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None


class Bucket:
    """One log in a bucket. Safe from any thread.

    Args:
        store: The store, at the log's root.
        clock: The clock of the waits between attempts.
        rng: Source of names and of jitter.
        scratch: Directory for the scratch directories of transactions. None: that of the system.
        reads: Reads objects.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        scratch: str | None = None,
        reads: ObjectReads | None = None,
    ) -> None:
        self.store = store
        self.url = store.url
        self.clock = clock or SystemClock()
        self.rng = rng or random.SystemRandom()
        self.attempts = store.commit_attempts or RUN_ATTEMPTS
        self.reads = reads or ObjectReads(store)
        self.reads.on_vanished = self.names
        self.reads.again = self.again
        self._scratch = scratch
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self._swapped = ""  # nonce of a version that this process swapped in after `_loaded` was read
        self._confirmed = -CONFIRMED_SECONDS  # when `_loaded` was the newest version, by the monotonic clock
        self._pages: dict[str, Layer] = {}
        self.tenure: Tenure | None = None
        """Set by a server of the log. While it is the active one, every commit of this process is conditional
        on its epoch."""

    def close(self) -> None:
        """End the threads that read ahead, and close the store."""
        self.reads.close()
        self.store.close()

    # -------------------------------------------------------------- read

    def load(self) -> Loaded:
        """Return the newest version. One request if it has not changed since the last call.

        Raises:
            CorruptFileError: The manifest or a page is damaged, lost, or of a newer version of this program.
        """
        with self._lock:
            began = self.clock.monotonic()
            self._loaded = self._newest(self._loaded)
            self._swapped = ""  # the newest version has every commit that was noted before
            self._confirmed = began
            if self.tenure is not None:
                self.tenure.seen(self._loaded.manifest.servers, self.clock.boottime())
            return self._loaded

    def committed(self) -> Loaded:
        """Return a version that has every commit of this process; no request if it is in memory."""
        return self.in_memory() or self.load()

    def in_memory(self) -> Loaded | None:
        """Return as `committed`; None if a request is needed."""
        with self._lock:
            loaded, swapped = self._loaded, self._swapped
        is_own = loaded is not None and (not swapped or swapped in loaded.manifest.history)
        return loaded if is_own else None

    def recent(self) -> Loaded:
        """Return a version that was the newest within `CONFIRMED_SECONDS`.

        It has every commit of this process.
        """
        return self.committed() if self.is_recent() else self.load()

    def is_recent(self) -> bool:
        """Return whether `recent` needs no request."""
        return self.clock.monotonic() - self._confirmed <= CONFIRMED_SECONDS

    def _newest(self, known: Loaded | None) -> Loaded:
        """Return the newest version; `known`: the one that was loaded last."""
        incomplete: ObjectVersion | None = None
        torn: list[StoredObject] = []
        while True:
            try:
                unless = known.version if known is not None else None
                stored = self.again(partial(self.store.get, MANIFEST, unless=unless))
            except ObjectVanishedError as error:
                if known is not None and known.version is not None:
                    raise lost_manifest(self.url) from error
                return Loaded(ManifestVersion(Manifest("")), None)
            if stored is None:
                assert known is not None
                return known
            try:
                manifest = Manifest.decode(stored.data, f"{self.url}/{MANIFEST}")
            except CorruptFileError as error:
                if any((stored.version, stored.data) == (other.version, other.data) for other in torn):
                    raise
                if len(torn) == TORN_READS:
                    why = f"{TORN_READS} reads gave bytes of several versions"
                    raise UncertainRequestError.of(str(error.file), "read", why, write=False) from error
                torn.append(stored)
                self.wait(len(torn))
                continue
            try:
                pages = tuple(map(self._page, manifest.pages))
            except ObjectVanishedError as error:
                # A commit replaced the page after the manifest was read, and a collection removed it.
                if stored.version == incomplete:
                    raise lost_object(str(error.file), "the newest version of the log") from error
                incomplete = stored.version
                continue
            self._forget_pages(manifest)
            return Loaded(ManifestVersion(manifest, pages), stored.version, stored.modified_ms)

    def _forget_pages(self, manifest: Manifest) -> None:
        """Keep only the pages of a version in memory."""
        named = {page.object for page in manifest.pages}
        self._pages = {key: layer for key, layer in self._pages.items() if key in named}

    def again(self, request: Callable[[], T]) -> T:
        """Return the result of a read or a deletion, which is repeated as a whole if it fails: it may be.

        The client goes on in an answer that broke off, which cannot be if another commit came meanwhile. It
        does not repeat a deletion of many objects whose answer broke off, or came too late. A store that does
        not answer for a longer time is an error: the client has repeated its request already.
        """
        began = self.clock.monotonic()
        for attempt in range(READ_ATTEMPTS - 1):
            try:
                return request()
            except UncertainRequestError:
                if self.clock.monotonic() - began > READ_AGAIN_SECONDS:
                    raise
            self.wait(attempt)
        return request()

    def _page(self, page: PageRef) -> Layer:
        layer = self._pages.get(page.object)
        if layer is None:
            stored = self.again(partial(self.store.get, page.object))
            assert stored is not None
            layer = self._pages[page.object] = decode_page(stored.data, f"{self.url}/{page.object}", page)
        return layer

    def put_page(self, page: PageRef, data: bytes) -> None:
        """Upload a page, and keep it for the version that names it."""
        self.store.put(page.object, data)
        with self._lock:
            self._pages[page.object] = decode_page(data, f"{self.url}/{page.object}", page)

    def names(self, key: str) -> bool:
        """Return whether the newest version names an object."""
        return key in self.load().snapshot.objects()

    def files(self, snapshot: ManifestVersion) -> BucketFiles:
        """Return the files of a version, to read."""
        return BucketFiles(self.url, snapshot, self.reads)

    # -------------------------------------------------------------- change

    def transaction(
        self,
        work: Callable[[BucketFiles], T],
        *,
        uploads: str | None = None,
        ends_uploads: bool = True,
        committed: Callable[[Changes], None] = lambda _: None,
        kept: KeptCopy | None = None,
    ) -> T:
        """Run `work` on a private copy of the newest version, commit its changes and return its result.

        `work` runs again if another commit changed the same thing meanwhile, or if an object was gone that
        it read: then it may have taken a file as absent, and neither its result nor its error counts. If it
        raises otherwise, nothing is committed.

        Args:
            work: Changes the copy.
            uploads: The name of uploads (`begin_uploads`) that `work` adopts.
            ends_uploads: The commit ends the uploads. False: others follow under the same name.
            committed: Called with the files that `work` changed, as they are stored, when they are in the
                log.
            kept: Has the copy of the last transaction, and takes that of this one. `work` may keep what it
                opened there, if it leaves the files as a stored version must be.

        Raises:
            UploadsGoneError: The uploads lapsed, so their objects may be gone.
            UncertainCommitError: The answers of the store were lost, and so many commits followed that the
                history does not show whether this one came in.
            BusyError: Others always came first.
        """
        for attempt in range(self.attempts):
            base = self.committed() if kept is not None and kept.is_alone else self.load()
            copy = (None if kept is None else kept.take(base)) or self._copied(base)
            vanished, stays = self.reads.vanished, False
            try:
                try:
                    result = work(copy.files)
                except Exception:
                    if self.reads.vanished == vanished:
                        raise
                if self.reads.vanished == vanished:
                    try:
                        commit = _Commit(self, copy, uploads, ends_uploads)
                        committed(commit.publish())
                        stays = kept is not None and kept.keep(copy, commit.rebased())
                        return result
                    except ChangedMeanwhile:
                        if kept is not None:
                            kept.overtaken()
                    except FileVanishedError:  # a checkpoint of another commit; this one is not in
                        if self.reads.vanished == vanished:
                            raise
            finally:
                if not stays:
                    copy.close()
            self.wait(attempt)
        raise self.overtaken()

    def commit_entries(
        self, entries_of: Callable[[ManifestVersion], Mapping[str, Entry] | None], kept: KeptCopy
    ) -> bool:
        """Commit entries that are computed from the last version, if it is this process's own and the newest.

        The copy of the last transaction is dropped: it is one of an older version then.

        Args:
            entries_of: Returns the entries; None: a transaction is needed.
            kept: As for `transaction`.

        Returns:
            Whether the entries are in the log. Otherwise nothing is: a transaction commits the change.

        Raises:
            UncertainCommitError: It is not known whether they are in the log.
            LastwordError: The store refuses. Nothing is in the log.
        """
        if not kept.is_alone:
            return False
        base, vanished = self.recent(), self.reads.vanished
        try:
            entries = entries_of(base.snapshot) if base.manifest.nonce == kept.nonce else None
        except FileVanishedError:
            if self.reads.vanished == vanished:
                raise
            kept.overtaken()  # the version is too old: an object that it names was removed
            entries = None
        if entries is None:
            return False
        kept.drop()
        uploaded = self.upload(entries)
        if self.recent().manifest.nonce == kept.nonce:  # the upload may have taken long
            following = self.next_manifest(base.snapshot, uploaded, CHANGES_BYTES)
            if self.swap(base, following) is None:
                kept.nonce = following.nonce
                return True
        kept.overtaken()
        return False

    def _copied(self, base: Loaded) -> PrivateCopy:
        scratch = ScratchSpace(self._scratch, self.clock)
        files = BucketFiles(self.url, base.snapshot, self.reads, scratch=scratch, rng=self.rng)
        return PrivateCopy(base, files, scratch)

    def overtaken(self) -> BusyError:
        """Return the error for a change that others always overtook. Nothing of it is in."""
        return BusyError(
            f"{self.url}: commits of other processes came first {self.attempts} times in a row",
            remedy="try again, or let fewer processes write to one partition",
            file=self.url,
        )

    def pin(self, keep_ms: int) -> str:
        """Keep every object of the version that is the newest now, for `keep_ms`. Return the pin's name."""
        name, until_ms = f"{self.rng.getrandbits(64):016x}", self.store_now_ms() + keep_ms
        self.edit(
            lambda loaded: replace(
                loaded.manifest, pins={**loaded.manifest.pins, name: Pin(loaded.modified_ms, until_ms)}
            )
        )
        return name

    def unpin(self, name: str) -> None:
        """Remove a pin."""
        if name in self.load().manifest.pins:
            self.edit(lambda loaded: replace(loaded.manifest, pins=_without(loaded.manifest.pins, name)))

    def begin_uploads(self, name: str, keep_ms: int) -> None:
        """Keep the objects that processes upload for a later commit. They are kept for `keep_ms` at most."""
        until_ms = self.store_now_ms() + keep_ms
        self.edit(
            lambda loaded: replace(
                loaded.manifest, uploads={**loaded.manifest.uploads, name: Pin(loaded.modified_ms, until_ms)}
            )
        )

    def end_uploads(self, name: str) -> None:
        """Give up the objects of uploads that were not committed."""
        if name in self.load().manifest.uploads:
            self.edit(
                lambda loaded: replace(loaded.manifest, uploads=_without(loaded.manifest.uploads, name))
            )

    def store_now_ms(self) -> int:
        """Return the time by the store's clock: that of a new object, which is removed again."""
        for _ in range(self.attempts):
            key = self.new_key()
            self.store.put(key, CLOCK_OBJECT)
            facts = self.store.facts(key)
            if facts is not None:  # else collections removed the object meanwhile
                self.again(partial(self.store.delete, [key]))
                return facts.modified_ms
        raise self.overtaken()

    def swap(self, base: Loaded, manifest: Manifest) -> Loaded | None:
        """Swap a manifest in; return None when it is in, or the version that another commit made.

        Raises:
            UncertainCommitError: The answers of the store do not show whether it is in.
            LastwordError: The store refuses, and it is not in.
        """
        began = self.clock.boottime()
        following = self._swap(base, manifest)
        if following is None and self.tenure is not None:
            self.tenure.won(manifest.servers, began)
        return following

    def _swap(self, base: Loaded, manifest: Manifest) -> Loaded | None:
        data = manifest.encode()
        failure: LastwordError | None = None
        uncertain = False  # an attempt may still take effect
        unread = False  # an attempt was refused, perhaps because the same request took effect before
        try:
            for attempt in range(SWAP_ATTEMPTS):
                if attempt:
                    self.wait(attempt)
                try:
                    if base.version is None:
                        version = self.store.create(MANIFEST, data)
                    else:
                        version = self.store.swap(MANIFEST, data, base.version)
                    self._note_swapped(base, manifest, version)
                    return None
                except (SwapRefusedError, ObjectTakenError) as error:
                    failure, unread = error, True
                except UncertainRequestError as error:
                    failure, uncertain = error, True
                except LastwordError as error:
                    failure = error
                    break
                try:
                    current = self.load()
                except LastwordError as error:
                    failure = error
                    continue
                unread = False
                if manifest.nonce in current.manifest.history:
                    return None
                if current.manifest.nonce == base.manifest.nonce:
                    continue  # the manifest is still the one that the condition names
                if _follows(current.manifest, base.manifest):
                    return current
                why = f"the answer to a commit was lost, and {HISTORY} or more commits followed"
                raise UncertainCommitError.of(self.url, why) from failure
            assert failure is not None
            if uncertain or unread:
                why = f"the store did not say whether the commit came in ({failure.message})"
                raise UncertainCommitError.of(self.url, why) from failure
            raise failure
        finally:
            failure = None  # it has this frame, and so the private copy, which the frame would keep

    def _note_swapped(self, base: Loaded, manifest: Manifest, version: ObjectVersion) -> None:
        """Take a version that was just swapped in as the newest, unless a newer one was loaded meanwhile."""
        with self._lock:
            known, self._swapped = self._loaded, manifest.nonce
            if known is not None and known.manifest.nonce == base.manifest.nonce:
                pages = [self._pages.get(page.object) for page in manifest.pages]
                if None not in pages:  # a new page is loaded with the next version
                    snapshot = ManifestVersion(manifest, tuple(page for page in pages if page is not None))
                    self._loaded = Loaded(snapshot, version, base.modified_ms, is_own=True)
                    self._confirmed = self.clock.monotonic()
                    self._forget_pages(manifest)

    def edit(self, change: Callable[[Loaded], Manifest | None]) -> None:
        """Commit a change of the manifest that concerns no file. None: there is nothing to change."""
        for attempt in range(self.attempts):
            if attempt:
                self.wait(attempt)
            base = self.load()
            changed = change(base)
            if changed is None or self.swap(base, self.following(changed)) is None:
                return
        raise self.overtaken()

    def following(self, manifest: Manifest) -> Manifest:
        """Return the manifest under the nonce of a new commit. A commit of the active server renews it.

        Raises:
            ServerFencedError: This process was the active server, and another one has taken over.
        """
        servers = manifest.servers if self.tenure is None else self.tenure.renewed(manifest.servers, self.url)
        nonce = f"{self.rng.getrandbits(64):016x}"
        history = (*manifest.history, nonce)[-HISTORY:]
        return replace(manifest, nonce=nonce, history=history, servers=servers)

    def next_manifest(
        self, base: ManifestVersion, entries: Changes, changes_bytes: int, ended_uploads: str | None = None
    ) -> Manifest:
        """Return the manifest that follows a version, with these entries.

        Uploads a page if its changes have more than `changes_bytes`. `ended_uploads`: the commit ends them.
        """
        before = base.manifest
        changes = {**before.changes, **entries}
        following = self.following(
            replace(
                before,
                changes=changes if before.pages else _without_removed(changes),
                uploads=_without(before.uploads, ended_uploads),
            )
        )
        moving = _without_checkpoints(following)
        if _size_of(moving) > changes_bytes:
            following = self._paged(base, following, moving)
        return following

    def _paged(self, base: ManifestVersion, manifest: Manifest, moving: Changes) -> Manifest:
        """Return the manifest with `moving` changes in a new page, which takes in small older pages.

        The checkpoints stay in the manifest, because they change with every commit.
        """
        kept = list(manifest.pages)
        layers, size = [Layer(moving)], len(moving)
        ratio = max(kept[0].entries / size, 1) ** PAGE_POWER if kept else 1
        while kept and (kept[-1].entries <= ratio * size or len(kept) >= MAX_PAGES):
            layers.append(base.layers[len(layers)])  # newest first, as `kept` from its end
            size += kept.pop().entries
        return self._with_page(manifest, kept, layers)

    def merge_pages(self) -> None:
        """Make one page of all: no object of the version then has an entry that is replaced or removed."""

        def change(loaded: Loaded) -> Manifest:
            layers = [Layer(_without_checkpoints(loaded.manifest)), *loaded.snapshot.layers[1:]]
            return self._with_page(loaded.manifest, [], layers)

        if self.load().manifest.pages:
            self.edit(change)

    def _with_page(self, manifest: Manifest, kept: Sequence[PageRef], layers: Sequence[Layer]) -> Manifest:
        """Return the manifest with a new page of these layers, newest first, behind the pages `kept`."""
        count, data = encode_page(layers, oldest=not kept)
        page = PageRef(self.new_key(), count, len(data))
        self.put_page(page, data)
        return replace(
            manifest,
            pages=(*kept, page),
            changes={path: entry for path, entry in manifest.changes.items() if path in CHECKPOINTS},
        )

    def wait(self, attempt: int) -> None:
        """Wait before another attempt: longer each time, and by chance, so that writers do not meet again."""
        longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt)
        self.clock.sleep(self.rng.uniform(longest / 2, longest))

    def new_key(self) -> str:
        """Return a key for a new object. It is never used again."""
        return f"{OBJECTS}{self.rng.getrandbits(128):032x}"

    # -------------------------------------------------------------- upload

    def upload(self, changes: Mapping[str, Node]) -> dict[str, Entry | None]:
        """Upload the local files among `changes`; return the entries of all. They are complete then."""
        entries: dict[str, Entry | None] = {}
        work: list[Callable[[], None]] = []
        bundle = _Bundle(self)
        for path, node in changes.items():
            if node is None:
                entries[path] = None
            elif isinstance(node, Entry):
                entries[path] = node
                if len(node.data) > _inline_bytes(path):  # of a short commit
                    entry = node._replace(data=b"")
                    bundle.add(node.size, partial(list, [node.data]), _placed(entries, path, entry))
            elif isinstance(node, PatchedFile):
                patch = Patch(node.parts).encode()
                entry = node.entry._replace(number=node.number)
                bundle.add(len(patch), partial(list, [patch]), _patched(entries, path, entry, len(patch)))
            else:
                facts = node.facts()
                entry = Entry(node.number, facts.size, facts.mtime_ms)
                if facts.size <= _inline_bytes(path):
                    entries[path] = entry._replace(data=b"".join(node.content()))
                elif facts.size >= BUNDLE_BYTES:
                    work.append(self._single(entries, path, node, entry))
                else:
                    bundle.add(facts.size, node.content, _placed(entries, path, entry))
            if bundle.size >= BUNDLE_BYTES:
                work.append(bundle.upload)
                bundle = _Bundle(self)
        if bundle.size:
            work.append(bundle.upload)
        if len(work) > 1:
            with ThreadPoolExecutor(UPLOADS, thread_name_prefix="lastword-upload") as pool:
                for upload in [pool.submit(task) for task in work]:
                    upload.result()
        elif work:
            work[0]()
        return entries

    def _single(
        self, entries: dict[str, Entry | None], path: str, local: LocalFile, entry: Entry
    ) -> Callable[[], None]:
        def upload() -> None:
            key = self.new_key()
            if local.path is None:
                self.put_kept(key, local.content())
            else:
                self.store.put_file(key, local.path)
            entries[path] = entry._replace(object=key)

        return upload

    def put_kept(self, key: str, parts: Sequence[Buffer]) -> None:
        """Upload an object, and keep it in memory if it is small enough: then its bytes are joined once."""
        if sum(map(len, parts)) <= self.reads.tail_bytes:
            parts = (b"".join(parts),)
        self.store.put(key, parts)
        self.reads.keep(key, parts)


class _Bundle:
    """Small pieces that share one object."""

    def __init__(self, bucket: Bucket) -> None:
        self.size = 0
        self._bucket = bucket
        self._pieces: list[tuple[Callable[[], list[Buffer]], Callable[[str, int], None], int]] = []

    def add(self, size: int, read: Callable[[], list[Buffer]], place: Callable[[str, int], None]) -> None:
        """Add a piece: `read` returns its bytes, `place` is called with its object and position."""
        self._pieces.append((read, place, self.size))
        self.size += size

    def upload(self) -> None:
        """Upload the object, and place its pieces."""
        key = self._bucket.new_key()
        parts = [part for read, _, _ in self._pieces for part in read()]
        self._bucket.put_kept(key, parts)
        for _, place, position in self._pieces:
            place(key, position)


_SUMMARIES = (f"/{names.SUMMARY}", f"/{names.KEYS}")


def _inline_bytes(path: str) -> int:
    """Return the size up to which a file is in the map itself."""
    if path in CHECKPOINTS:
        return CHECKPOINT_BYTES
    return SUMMARY_BYTES if path.endswith(_SUMMARIES) else INLINE_BYTES


def _placed(entries: dict[str, Entry | None], path: str, entry: Entry) -> Callable[[str, int], None]:
    def place(key: str, position: int) -> None:
        entries[path] = entry._replace(object=key, position=position)

    return place


def _patched(
    entries: dict[str, Entry | None], path: str, entry: Entry, size: int
) -> Callable[[str, int], None]:
    def place(key: str, position: int) -> None:
        entries[path] = entry._replace(patch=PatchRef(key, position, size))

    return place


class _Commit:
    """One commit: the changes of a transaction on their way into the manifest."""

    def __init__(self, bucket: Bucket, copy: PrivateCopy, uploads: str | None, ends_uploads: bool) -> None:
        self._bucket = bucket
        self._copy = copy
        self._uploads = uploads
        self._ended_uploads = uploads if ends_uploads else None
        self._entries: Changes = {}
        self._nonce: str | None = copy.base.manifest.nonce  # of the version that is the copy; None: none is

    def publish(self) -> Changes:
        """Upload and swap, until the commit is in the log; return the entries of the files that it changed.

        Raises:
            ChangedMeanwhile: Another commit changed the same thing. Nothing of this one is in the log.
            BusyError: Other commits always came first. Nothing of this one is in the log.
            UncertainCommitError: It is not known whether the commit is in the log.
            LastwordError: The store refuses. Nothing of the commit is in the log.
        """
        bucket, first = self._bucket, self._copy.base
        changes = self._without_equal(first.snapshot)
        if not changes:
            return {}
        entries, collection = bucket.upload(changes), first.manifest.collection
        # The transaction may have taken hours.
        base = bucket.recent()
        for attempt in range(bucket.attempts):
            if attempt:  # a version from before the wait would be refused while another process commits often
                bucket.wait(min(attempt, 4))
                base = bucket.load()
            if self._uploads is not None and self._uploads not in base.manifest.uploads:
                raise UploadsGoneError(
                    f"{bucket.url}: the uploads {self._uploads} are not kept any more, so their objects may "
                    "be gone",
                    remedy="run the job again; nothing was committed",
                    file=bucket.url,
                )
            if base.manifest.collection != collection:
                entries, collection = bucket.upload(changes), base.manifest.collection
            wanted: Changes = entries
            if base.manifest.nonce != first.manifest.nonce:
                wanted = merged(first.snapshot, entries, base.snapshot, bucket.reads.whole)
            changes_bytes = LONG_CHANGES_BYTES if attempt else CHANGES_BYTES
            following = bucket.next_manifest(base.snapshot, wanted, changes_bytes, self._ended_uploads)
            if bucket.swap(base, following) is None:
                self._entries = entries
                self._nonce = following.nonce if base.manifest.nonce == first.manifest.nonce else None
                return entries
        raise bucket.overtaken()

    def rebased(self) -> Loaded | None:
        """Make the copy one of the version that this commit has made, and return that version.

        None: it has changes of other commits, too, or is not in memory. Then the copy is of no use.
        """
        newest = self._bucket.in_memory()  # a read that failed would fail a commit that is in the log
        if newest is None or newest.manifest.nonce != self._nonce:
            return None
        self._copy.files.rebase(newest.snapshot, self._entries)
        return newest

    def _without_equal(self, snapshot: ManifestVersion) -> dict[str, Node]:
        """Return the changes without files that were written again with the same bytes."""
        changes: dict[str, Node] = {}
        for path, node in self._copy.files.changes():
            before = snapshot.entry(path)
            if (
                isinstance(node, LocalFile)
                and before is not None
                and before.object is None
                and node.facts().size == before.size
                and b"".join(node.content()) == before.data
            ):
                continue
            changes[path] = node
        return changes


def _follows(current: Manifest, base: Manifest) -> bool:
    """Return whether the history of a manifest shows every commit since another one."""
    if not base.nonce:  # there was no manifest
        return len(current.history) < HISTORY
    return base.nonce in current.history


def _without(pins: Mapping[str, Pin], name: str | None) -> dict[str, Pin]:
    return {other: pin for other, pin in pins.items() if other != name}


def _size_of(changes: Changes) -> int:
    """Return about the bytes of changes in a manifest."""
    inline = sum([len(entry.data) for entry in changes.values() if entry is not None])
    return sum(map(len, changes)) + ENTRY_BYTES * len(changes) + inline * 4 // 3


def _without_checkpoints(manifest: Manifest) -> Changes:
    return {path: entry for path, entry in manifest.changes.items() if path not in CHECKPOINTS}


def _without_removed(changes: Changes) -> dict[str, Entry | None]:
    return {path: entry for path, entry in changes.items() if entry is not None}
