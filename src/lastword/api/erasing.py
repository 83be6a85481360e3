"""`Topic.erase`: remove keys and their values from every file of a topic, and search what is left.

First every partition is searched for the keys. An append then has a tombstone for each key without one. Then
a transaction, for each partition: the rewrite of every segment that has a record of a key
(`cleaner.engine.erasure`), the removal of derived files, which hold keys, and of files that wait for
their deletion, and the search (`tools.erasure`). Each step may be repeated: a call after a crash does what
is left. It does not look for the old values that are gone already.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

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
    Listed,
    PartitionErasure,
    Searched,
    Wanted,
    check_certificate,
    digest_of,
    hex_digest,
    load_certificate,
    ranges_of,
    search,
)
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.partition.log import PartitionLog

T = TypeVar("T")
U = TypeVar("U")

_BATCH_BYTES = 32 << 10
_COLLECTIONS = 4
"""Further collections of a bucket: objects are noted, then removed, then the list of the notes is."""
_SETTLE_SECONDS = 1.1
"""An object that is noted after a commit of another process is due when the store's clock, which may count
seconds, has moved on."""


def erase(
    dirs: OpenDirs,
    topic: str,
    keys: Iterable[bytes] | SpanSet,
    *,
    prefix: bytes | None = None,
    partition: int | None = None,
    now: bool = False,
    dry_run: bool = False,
    progress: ProgressLike | bool | None = None,
    found: Mapping[int, tuple[NDArray[np.int64], int]] | None = None,
) -> Erasure:
    """See `Topic.erase`.

    `found`: for partitions the numbers of the keys in a `SpanSet` that have a record below an offset, and the
    offset. Without it, and in other partitions, the keys are looked for here.
    """
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
    numbers = [number for _, number in dirs.select(topic, partition)]
    began_ms, failed = dirs.clock.now_ms(), list[LastwordError]()
    if prefix is not None:

        def keys_of(number: int, _: None) -> set[bytes]:
            view = dirs.checked_view(topic, number)
            return dirs.on_view(view, lambda view: keys_with_prefix(view.segments, prefix))

        begun, failed = _each(dict.fromkeys(numbers), keys_of)
        keys, numbers = (
            chain(keys.members if isinstance(keys, SpanSet) else keys, *begun.values()),
            list(begun),
        )
    wanted = keys if isinstance(keys, SpanSet) else SpanSet(keys)
    if prefix == b"" or wanted.number(b"") >= 0:
        raise UsageError(
            "a key of no bytes cannot be erased", remedy="give keys or a prefix of a byte or more"
        )
    salt = os.urandom(SALT_BYTES)
    meter = Meter("erase", progress, (1 if dry_run else 3) * sum(_size(dirs, topic, n) for n in numbers))
    digests = b"".join(digest_of(salt, key) for key in wanted.members)
    one = _Erasing(dirs, topic, wanted, salt, digests, now, meter)
    if dry_run:
        planned, errors = _each(dict.fromkeys(numbers), lambda number, _: one.planned(number))
        failed += errors
        done = tuple(planned.values())
    else:
        done = one.erased(numbers, found or {}, failed)
    listed = Listed(len(wanted.members), partial(hex_digest, digests))
    times, messages = (began_ms, dirs.clock.now_ms()), tuple(error.message for error in failed)
    result = Erasure(topic, listed, salt.hex(), now, dry_run, *times, done, messages)
    result = result if dry_run else _collected(dirs, result)
    PartialFailure.check([result], failed)
    return result


def _collected(dirs: OpenDirs, erasure: Erasure) -> Erasure:
    """Remove objects of a bucket that hold erased records, as `now` or their retention allows.

    In a directory there is nothing to do.
    """
    if not dirs.files.file_cost_bytes:
        return erasure
    dirs.drop_removed_bytes()
    done = dirs.collect(retention_ms=0 if erasure.now else None)
    removed = done.removed_objects
    for number in range(_COLLECTIONS if erasure.now else 0):
        if done.waiting_objects > done.pinned_objects:  # a call has noted them, and a later one removes them
            dirs.clock.sleep(_SETTLE_SECONDS if number else 0)
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
        return dirs.view(topic, number).segment_set.size
    return 0


@dataclass(frozen=True, slots=True)
class _Buried:
    """The numbers of the keys with a tombstone in a partition, its offset for each, and the log end."""

    keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    end: int


class _Erasing:
    """One call, for the partitions of a topic.

    The tombstones are one append, and the removal is one transaction that appends nothing: in a bucket other
    writers may append to the partitions meanwhile.
    """

    def __init__(
        self, dirs: OpenDirs, topic: str, keys: SpanSet, salt: bytes, digests: bytes, now: bool, meter: Meter
    ) -> None:
        self._dirs, self._topic, self._keys, self._salt = dirs, topic, keys, salt
        self._digests, self._now, self._meter = digests, now, meter

    def planned(self, number: int) -> PartitionErasure:
        """Return what would be removed from one partition."""
        wanted = Wanted(self._keys, self._salt)
        found, _ = self._found(number, wanted.add_value)
        return PartitionErasure(
            partition=number,
            records=found.records,
            tombstones=found.tombstones if self._now else 0,
            ranges=ranges_of(found.offsets),
            values=wanted.values,
            all_values=wanted.all_values,
        )

    def erased(
        self,
        numbers: Sequence[int],
        known: Mapping[int, tuple[NDArray[np.int64], int]],
        failed: list[LastwordError],
    ) -> tuple[PartitionErasure, ...]:
        """Erase the keys from partitions, and search them. Appends the errors of the others to `failed`."""

        def find(number: int) -> tuple[FoundRecords, int]:
            check_quarantine(self._dirs, self._topic, number)
            if number not in known:
                return self._found(number)
            keys, end = known[number]
            return FoundRecords.undeleted(keys), end

        found, errors = _each(dict.fromkeys(numbers), lambda number, _: find(number))
        failed += errors

        def bury(dirs: OpenDirs) -> tuple[dict[int, _Buried], list[LastwordError]]:
            return _each(found, lambda number, facts: self._bury(dirs.log(self._topic, number), *facts))

        buried, errors = self._dirs.append(self._topic, bury, (bytes(self._keys.members.size_bytes), None))
        failed += errors

        def remove(dirs: OpenDirs) -> tuple[dict[int, PartitionErasure], list[LastwordError]]:
            return _each(buried, lambda number, facts: self._partition(dirs, number, facts))

        done, errors = self._dirs.transaction(remove)
        failed += errors
        return tuple(done.values())

    def _found(
        self, number: int, on_value: Callable[[bytes], None] | None = None
    ) -> tuple[FoundRecords, int]:
        """Return the records of the keys, and the log end."""
        with self._meter.part(_size(self._dirs, self._topic, number)):
            return self._dirs.on_view(
                self._dirs.checked_view(self._topic, number),
                lambda view: (find_records(view.segments, self._keys, on_value), view.log_end),
            )

    def _bury(self, log: PartitionLog, found: FoundRecords, end: int) -> _Buried:
        """Append a tombstone for each key without one. `end`: the log end when the records were found."""
        later = [segment for segment in log.segments if segment.next_offset > end]
        tombstones = np.full(len(self._keys.members), -1, np.int64)
        is_left = np.zeros(tombstones.size, np.bool_)
        for facts in (found, find_records(later, self._keys)):
            is_left[facts.keys] = ~facts.is_deleted
            tombstones[facts.keys] = np.where(facts.is_deleted, facts.newest, -1)
        left = np.flatnonzero(is_left)
        if (left.size or tombstones.max(initial=-1) >= 0) and log.cleanable_offset < log.log_end:
            raise BusyError(
                f"{log.name}: a transaction or commit at {log.cleanable_offset} is not decided; "
                "nothing was erased there",
                remedy=f"`lastword transactions {_where(self._dirs, self._topic)}` shows an open one",
                file=log.directory,
                offset=log.cleanable_offset,
            )
        limit = min(_BATCH_BYTES, log.config.max_message_bytes, log.config.segment_bytes)
        done = 0
        while done < left.size:
            builder, first = BatchBuilder(log.config.codec), done
            for number in left[first:]:
                key = self._keys.members[number]
                if done > first and builder.size_estimate + len(key) + 32 >= limit:
                    break
                builder.append(log.clock.now_ms(), key, None)
                done += 1
            base_offset = log.append_batch(builder.build()).base_offset
            tombstones[left[first:done]] = np.arange(base_offset, base_offset + done - first)
        log.sync()
        there = np.flatnonzero(tombstones >= 0)
        return _Buried(there, tombstones[there], log.log_end)

    def _partition(self, dirs: OpenDirs, number: int, buried: _Buried) -> PartitionErasure:
        """Erase the keys from one partition, and search it."""
        log_dir, tombstones = dirs.log_dir(self._topic, number), np.full(len(self._keys.members), -1)
        tombstones[buried.keys] = buried.offsets
        part = self._meter.part(2 * _size(dirs, self._topic, number))
        with part as progress, log_dir.claim(self._topic, number):
            check_quarantine(dirs, self._topic, number)
            log, wanted = log_dir.log(self._topic, number), Wanted(self._keys, self._salt)
            done = PartitionErasure(number)
            if buried.keys.size:
                held = _below(self._live(log), int(tombstones.max())) if self._now else ()
                done = replace(self._removed(dirs, log, wanted, tombstones), leases=held)
            _discard_derived(dirs, log)
            if progress is not None:
                progress(1, 2)
            result = self._search(dirs, log, wanted, tombstones, buried.end)
        return replace(
            done,
            end=buried.end,
            values=wanted.values,
            all_values=wanted.all_values,
            segments=tuple(result.segments),
            files=result.files,
            read_bytes=result.read_bytes,
            records_searched=result.records,
            copies=tuple(result.copies),
            copies_found=result.copies_found,
            others=tuple(result.others),
            others_found=result.others_found,
        )

    def _removed(
        self, dirs: OpenDirs, log: PartitionLog, wanted: Wanted, tombstones: NDArray[np.int64]
    ) -> PartitionErasure:
        """Rewrite the segments; return what was removed, and the tombstones that stay."""
        config, instance = dirs.config(log.topic), dirs.settings.instance
        context = CleanContext(
            log.files,
            dirs.clock,
            threads=instance.log_cleaner_threads,
            budget=dirs.drives.budget(dirs.log_dir(log.topic, log.partition).path),
        )
        done = erase_records(
            log, config, self._keys, tombstones, context, wanted.add_value, drops_tombstones=self._now
        )
        kept: Sequence[KeptTombstone] = ()
        if not self._now:
            until_ms, digests = dirs.clock.now_ms() + config.delete_retention_ms, self._digests
            live = self._live(log)
            numbers = np.argsort(tombstones)[np.count_nonzero(tombstones < 0) :]
            offsets = tombstones[numbers]

            def kept_at(at: int) -> KeptTombstone:
                digest, offset = hex_digest(digests, int(numbers[at])), int(offsets[at])
                return KeptTombstone(digest, offset, until_ms, _below(live, offset))

            kept = Listed(numbers.size, kept_at)
        gone = 0 if done.round is None else done.round.removed.tombstone
        return PartitionErasure(
            log.partition,
            records=done.offsets.size - gone,
            tombstones=gone,
            ranges=ranges_of(done.offsets),
            kept=kept,
        )

    def _live(self, log: PartitionLog) -> Sequence[leases.LeaseFacts]:
        """Return the live leases of a partition."""
        return leases.load(log.files, log.directory, self._dirs.clock.now_ms()).live

    def _search(
        self, dirs: OpenDirs, log: PartitionLog, wanted: Wanted, tombstones: NDArray[np.int64], end: int
    ) -> Searched:
        log_dir = dirs.log_dir(log.topic, log.partition)
        others = [each.path for each in dirs.directories if each is not log_dir]

        def is_kept(key: int, offset: int) -> bool:
            return offset >= end or bool(tombstones[key] == offset and not self._now)

        try:
            return search(log.view(), wanted, is_kept, log_dir.path, log.files, others)
        except FileVanishedError as error:
            raise BusyError(
                f"{error.file} was removed while it was searched", remedy="erase again", file=error.file
            ) from None


def _below(live: Sequence[leases.LeaseFacts], offset: int) -> tuple[str, ...]:
    """Return the leases whose readers have not read the record at an offset."""
    return tuple(f"{lease.name} at {lease.position}" for lease in live if lease.position <= offset)


def _each(parts: Mapping[int, T], work: Callable[[int, T], U]) -> tuple[dict[int, U], list[LastwordError]]:
    """Return the results of partitions by their numbers, and the errors of the others."""
    done: dict[int, U] = {}
    failed: list[LastwordError] = []
    for number, part in parts.items():
        with PartialFailure.collecting(failed, DataError, StorageError, BusyError):
            done[number] = work(number, part)
    return done, failed


def _discard_derived(dirs: OpenDirs, log: PartitionLog) -> None:
    """Remove the garbage index, the key index, outputs of cleanings and files that wait for deletion."""
    files, log_dir = log.files, dirs.log_dir(log.topic, log.partition)
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
