"""`Topic.erase`: remove keys and their values from every file of a topic, and search what is left.

For each partition: a tombstone for each key, then the rewrite of every segment that has a record of a key
(`cleaner.engine.erasure`), then the removal of derived files, which hold keys, and of files that wait for
their deletion, then the search (`tools.erasure`). Each step may be repeated: a call after a crash does what
is left. It does not look for the old values that are gone already.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.api.cleaning import check_quarantine
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.erasure import (
    FoundRecords,
    SpanSet,
    erase_records,
    find_records,
    keys_with_prefix,
)
from lastword.errors import (
    BusyError,
    DataError,
    FileVanishedError,
    LastwordError,
    NoPolicyError,
    PartialFailure,
    StorageError,
    UsageError,
)
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from lastword.tools.erasure import (
    SALT_BYTES,
    CertificateCheck,
    Erasure,
    KeptTombstone,
    PartitionErasure,
    Searched,
    Wanted,
    check_certificate,
    digest_of,
    load_certificate,
    ranges_of,
    search,
)
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.partition.log import PartitionLog

_BATCH_BYTES = 32 << 10
_COLLECTIONS = 3
"""Further collections of a bucket: objects are noted, then removed, then the list of the notes is."""


def erase(
    dirs: OpenDirs,
    topic: str,
    keys: Iterable[bytes],
    *,
    prefix: bytes | None = None,
    partition: int | None = None,
    now: bool = False,
    dry_run: bool = False,
    progress: ProgressLike | bool | None = None,
    salt: bytes | None = None,
) -> Erasure:
    """See `Topic.erase`. `salt`: 16 bytes; None: new ones."""
    if not dry_run:
        dirs.require_writable()
    config = dirs.config(topic)
    if not config.compacts:
        if config.policy is None:
            raise NoPolicyError.of(topic, dirs.paths[0], config.unread)
        command = f"lastword config {_where(dirs, topic)} --set cleanup.policy=compact,delete"
        raise NoPolicyError(
            f"{topic} has cleanup.policy={config.policy_text}: a key cannot be erased from it",
            remedy=f"`{command}`, then erase again",
        )
    chosen = dirs.select(topic, partition)
    wanted = set(keys)
    failed: list[LastwordError] = []
    if prefix is not None:
        for tp in list(chosen):
            try:
                view = dirs.checked_view(*tp)
                wanted |= dirs.on_view(view, lambda view: keys_with_prefix(view.segments, prefix))
            except (DataError, StorageError, BusyError) as error:
                failed.append(error)
                chosen.remove(tp)
    if b"" in wanted or prefix == b"":
        raise UsageError(
            "a key of no bytes cannot be erased", remedy="give keys or a prefix of a byte or more"
        )
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    began_ms = dirs.clock.now_ms()
    one = _Erasing(dirs, topic, SpanSet(wanted), salt, now, dry_run)
    done: list[PartitionErasure] = []
    meter = Meter("erase", progress, sum(_size(dirs, *tp) for tp in chosen))
    for _, number in chosen:
        try:
            with meter.part(_size(dirs, topic, number)) as part:
                done.append(one.partition(number, part or (lambda done, total: None)))
        except (DataError, StorageError, BusyError) as error:
            failed.append(error)
    digests = tuple(digest_of(salt, key).hex() for key in one.keys.members)
    times = began_ms, dirs.clock.now_ms()
    errors = tuple(error.message for error in failed)
    result = Erasure(topic, digests, salt.hex(), now, dry_run, *times, tuple(done), errors)
    PartialFailure.check([result], failed)
    return result


def collected(dirs: OpenDirs, erasure: Erasure) -> Erasure:
    """Remove objects of a bucket that hold erased records, as `now` or their retention allows.

    In a directory there is nothing to do.
    """
    if not dirs.files.file_cost_bytes:
        return erasure
    dirs.drop_removed_bytes()
    done = dirs.collect(retention_ms=0 if erasure.now else None)
    removed = done.removed_objects
    for _ in range(_COLLECTIONS if erasure.now else 0):
        if done.waiting_objects:  # a call has noted them, and the next one removes them
            done = dirs.collect(retention_ms=0)
            removed += done.removed_objects
    return replace(
        erasure,
        removed_objects=removed,
        waiting_objects=done.waiting_objects + done.uploading_objects,
        waiting_until_ms=done.next_due_ms,
    )


def _where(dirs: OpenDirs, topic: str) -> str:
    """Return directory and topic as words of a command line."""
    return f"{shlex.quote(dirs.paths[0])} {topic}"


def _size(dirs: OpenDirs, topic: str, number: int) -> int:
    with suppress(LastwordError):  # raised where the partition is erased
        return sum(segment.size for segment in dirs.view(topic, number).segments)
    return 0


class _Erasing:
    """One call, for each partition of a topic."""

    def __init__(
        self, dirs: OpenDirs, topic: str, keys: SpanSet, salt: bytes, now: bool, dry_run: bool
    ) -> None:
        self.keys = keys
        self._dirs, self._topic, self._salt = dirs, topic, salt
        self._now, self._dry_run = now, dry_run

    def partition(self, number: int, progress: Callable[[int, int], None]) -> PartitionErasure:
        """Erase the keys from one partition, and search it."""
        log_dir = self._dirs.log_dir(self._topic, number)
        if self._dry_run:
            wanted = Wanted(self.keys, self._salt)
            view = self._dirs.checked_view(self._topic, number)
            found = self._dirs.on_view(
                view, lambda view: find_records(view.segments, self.keys, wanted.add_value)
            )
            return self._planned(number, found, wanted)
        with log_dir.claim(self._topic, number):
            check_quarantine(self._dirs, self._topic, number)
            log = log_dir.log(self._topic, number)
            wanted = Wanted(self.keys, self._salt)
            found = find_records(log.segments, self.keys, wanted.add_value)
            progress(1, 3)
            floors = dict.fromkeys(range(len(self.keys.members)), log.log_end)
            held: tuple[str, ...] = ()
            done = self._planned(number, found, wanted)
            if found.newest:
                if log.cleanable_offset < log.log_end:
                    raise BusyError(
                        f"{log.name}: a transaction or commit at {log.cleanable_offset} is not decided; "
                        "nothing was erased there",
                        remedy=f"`lastword transactions {_where(self._dirs, self._topic)}` shows an open one",
                        file=log.directory,
                        offset=log.cleanable_offset,
                    )
                tombstones = self._bury(log, found)
                floors |= {key: offset + self._now for key, offset in tombstones.items()}
                held = self._below(log, max(tombstones.values())) if self._now else ()
                done = self._removed(log, done, tombstones)
            self._discard_derived(log)
            progress(2, 3)
            result = self._search(log, wanted, floors)
        return replace(
            done,
            end=log.log_end,
            leases=held,
            segments=tuple(result.segments),
            files=result.files,
            read_bytes=result.read_bytes,
            records_searched=result.records,
            copies=tuple(result.copies),
            copies_found=result.copies_found,
            others=tuple(result.others),
            others_found=result.others_found,
        )

    def _planned(self, number: int, found: FoundRecords, wanted: Wanted) -> PartitionErasure:
        """Return what was found, as what is to be removed."""
        return PartitionErasure(
            partition=number,
            end=-1,
            records=found.records,
            tombstones=found.tombstones if self._now else 0,
            ranges=ranges_of(found.offsets),
            kept=(),
            leases=(),
            segments=(),
            files=0,
            read_bytes=0,
            records_searched=0,
            values=wanted.values,
            all_values=wanted.all_values,
            copies=(),
            copies_found=0,
            others=(),
            others_found=0,
        )

    def _bury(self, log: PartitionLog, found: FoundRecords) -> dict[int, int]:
        """Append a tombstone for each key without one; return the offset of the tombstone of each key."""
        tombstones = {key: offset for key, (offset, is_tombstone) in found.newest.items() if is_tombstone}
        left = [key for key in found.newest if key not in tombstones]
        limit = min(_BATCH_BYTES, log.config.max_message_bytes, log.config.segment_bytes)
        while left:
            builder = BatchBuilder(log.config.codec)
            taken: list[int] = []
            while left and (
                not taken or builder.size_estimate + len(self.keys.members[left[-1]]) + 32 < limit
            ):
                taken.append(left.pop())
                builder.append(log.clock.now_ms(), self.keys.members[taken[-1]], None)
            base_offset = log.append_batch(builder.build()).base_offset
            tombstones |= {key: base_offset + i for i, key in enumerate(taken)}
        log.sync()
        return tombstones

    def _removed(
        self, log: PartitionLog, planned: PartitionErasure, tombstones: dict[int, int]
    ) -> PartitionErasure:
        """Rewrite the segments; return what was removed, and the tombstones that stay."""
        dirs = self._dirs
        instance = dirs.settings.instance
        context = CleanContext(
            log.files,
            dirs.clock,
            threads=instance.log_cleaner_threads,
            budget=dirs.drives.budget(dirs.log_dir(log.topic, log.partition).path),
        )
        config = dirs.config(log.topic)
        done = erase_records(log, config, self.keys, tombstones, context, drops_tombstones=self._now)
        kept: list[KeptTombstone] = []
        if not self._now:
            until_ms = dirs.clock.now_ms() + config.delete_retention_ms
            for key, offset in sorted(tombstones.items(), key=lambda pair: pair[1]):
                digest = digest_of(self._salt, self.keys.members[key]).hex()
                kept.append(KeptTombstone(digest, offset, until_ms, self._below(log, offset)))
        gone = 0 if done.round is None else done.round.removed.tombstone
        return replace(
            planned,
            records=done.offsets.size - gone,
            tombstones=gone,
            ranges=ranges_of(done.offsets),
            kept=tuple(kept),
        )

    def _below(self, log: PartitionLog, offset: int) -> tuple[str, ...]:
        """Return the live leases whose readers have not read the record at an offset."""
        live = leases.load(log.files, log.directory, self._dirs.clock.now_ms()).live
        return tuple(f"{lease.name} at {lease.position}" for lease in live if lease.position <= offset)

    def _discard_derived(self, log: PartitionLog) -> None:
        """Remove the garbage index, the key index, outputs of cleanings and files that wait for deletion."""
        dirs, files = self._dirs, log.files
        log_dir = dirs.log_dir(log.topic, log.partition)
        log_dir.ledgers.forget(TopicPartition(log.topic, log.partition))
        index = dirs.key_index(log.topic, log.partition, log.directory)
        if index is not None:
            with index.lock:
                index.remove()
        private = os.path.join(log.directory, names.PRIVATE)
        log.store.discard_outputs()
        for name in files.listdir(private) if files.exists(private) else ():
            if name in (names.ACCOUNTS, names.KEYS) or name.startswith(names.KEY_RUN):
                files.unlink(os.path.join(private, name), missing_ok=True)
        log.remove_deferred(all=True)

    def _search(self, log: PartitionLog, wanted: Wanted, floors: dict[int, int]) -> Searched:
        numbers = {key: number for number, key in enumerate(self.keys.members)}
        log_dir = self._dirs.log_dir(log.topic, log.partition)
        others = [each.path for each in self._dirs.directories if each is not log_dir]

        def is_kept(key: bytes, offset: int) -> bool:
            return offset >= floors[numbers[key]]

        try:
            return search(log.view(), wanted, is_kept, log_dir.path, log.files, others)
        except FileVanishedError as error:
            raise BusyError(
                f"{error.file} was removed while it was searched", remedy="erase again", file=error.file
            ) from None


def check(dirs: OpenDirs, path: str) -> CertificateCheck:
    """Check the certificate in a file, and look for its keys in the topic as it is now.

    Raises:
        CorruptFileError: A byte of the certificate has changed.
    """
    content = load_certificate(dirs.local_files, path)
    views, errors = dirs.checked_views(dirs.select(content["topic"], None))
    for error in errors.values():
        raise error
    return check_certificate(content, {number: view for (_, number), view in views.items()}, dirs.files)
