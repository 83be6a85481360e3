"""The errors of lastword, ordered by the remedy that the caller has.

    LastwordError
    ├── UsageError        exit 2, also ValueError: fix the call
    │   ├── ReadOnlyError
    │   ├── NotALogDirError
    │   ├── UnknownTopicError  also KeyError
    │   ├── TopicExistsError
    │   ├── InvalidTopicError
    │   ├── InvalidSettingError
    │   │   └── UnknownSettingError
    │   ├── NoPolicyError
    │   ├── OffsetOutOfRangeError
    │   ├── KeyRequiredError
    │   ├── SerializerError
    │   ├── RecordTooLargeError
    │   ├── LeaseRefusedError
    │   ├── SnapshotRefusedError
    │   ├── TableRefusedError
    │   ├── SequenceGapError
    │   ├── ProducerFencedError
    │   │   └── CoordinatorFencedError
    │   ├── TransactionStateError
    │   ├── UnsupportedVersionError
    │   ├── UnencodableMessageError
    │   ├── AuthenticationFailedError
    │   ├── NotAuthorizedError
    │   ├── ClusterDiffersError
    │   └── SparkOptionError
    ├── DataError         exit 3: the bytes are bad
    │   ├── CorruptBatchError
    │   ├── CorruptFileError
    │   ├── UnknownMagicError
    │   ├── UnsupportedBatchError
    │   ├── DecompressionLimitError
    │   ├── InconsistentTopicIdError
    │   ├── DivergedLogError
    │   ├── DuplicatePartitionError
    │   ├── NotAPartitionError
    │   ├── TruncatedObjectError
    │   ├── ValueFormatError
    │   ├── MalformedMessageError
    │   │   └── FrameTooLargeError
    │   ├── CertificateError
    │   └── QuarantinedError
    ├── BusyError         exit 4: try again
    │   ├── LogDirLockedError
    │   ├── ConflictError
    │   ├── RegistryError
    │   ├── BrokerUnreachableError
    │   ├── BrokerRefusedError
    │   ├── UploadsGoneError
    │   ├── ServerFencedError
    │   ├── UncertainCommitError
    │   └── ReadOvertakenError
    ├── CapacityError     exit 5: make room
    │   ├── DiskFullError
    │   ├── StateTooLargeError
    │   └── TransactionTooLargeError
    ├── StorageError      exit 6, also OSError: the drive or its permissions
    │   ├── SyncFailedError
    │   ├── OfflineError
    │   ├── NotPermittedError  also PermissionError
    │   ├── LockLostError
    │   ├── WrongUserError
    │   ├── FileVanishedError  also FileNotFoundError
    │   ├── NotSharedError
    │   ├── FileTakenError  also FileExistsError
    │   ├── UncertainRequestError
    │   │   └── ThrottledError
    │   ├── CredentialsRefusedError  also PermissionError
    │   ├── BucketMissingError  also FileNotFoundError
    │   ├── ObjectVanishedError  also FileNotFoundError
    │   ├── ObjectTakenError  also FileExistsError
    │   ├── SwapRefusedError
    │   ├── ClockSkewError
    │   └── UnconditionalStoreError
    ├── MissingError      exit 7, also ImportError: install a package
    └── PartialFailure    some partitions failed; has the others' results; also the first error's class

`str(error)` has the message and, on a second line, the remedy. All errors can be pickled, so that Spark's
tasks can return them to the driver. Class methods make the sentences that several modules use. The class of
all errors is in `base`, the errors of storage are in `storage`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from lastword.errors.base import LastwordError as LastwordError
from lastword.errors.base import rebuild
from lastword.errors.storage import BucketMissingError as BucketMissingError
from lastword.errors.storage import ClockSkewError as ClockSkewError
from lastword.errors.storage import CredentialsRefusedError as CredentialsRefusedError
from lastword.errors.storage import FileTakenError as FileTakenError
from lastword.errors.storage import FileVanishedError as FileVanishedError
from lastword.errors.storage import LockLostError as LockLostError
from lastword.errors.storage import NotPermittedError as NotPermittedError
from lastword.errors.storage import NotSharedError as NotSharedError
from lastword.errors.storage import ObjectTakenError as ObjectTakenError
from lastword.errors.storage import ObjectVanishedError as ObjectVanishedError
from lastword.errors.storage import OfflineError as OfflineError
from lastword.errors.storage import StorageError as StorageError
from lastword.errors.storage import SwapRefusedError as SwapRefusedError
from lastword.errors.storage import SyncFailedError as SyncFailedError
from lastword.errors.storage import ThrottledError as ThrottledError
from lastword.errors.storage import UncertainRequestError as UncertainRequestError
from lastword.errors.storage import UnconditionalStoreError as UnconditionalStoreError
from lastword.errors.storage import WrongUserError as WrongUserError
from lastword.units import format_bytes

T = TypeVar("T")


class PartialFailure(LastwordError):
    """Some parts of a call failed, and the call did its work for the other parts.

    `of` makes an error that is also an instance of its first error's class, with the message, remedy, file
    and exit code of the first error. So `except DataError` catches a damaged partition, alone or among many.

    Attributes:
        results: The results of the parts that did not fail.
        errors: The errors of the parts that failed, in the order in which they occurred.
        note: The end of the message, about the other parts. Empty if the results show it.
    """

    def __init__(
        self,
        message: str,
        *,
        results: Any = None,
        errors: Sequence[LastwordError] = (),
        note: str = "",
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.results = results
        self.errors = tuple(errors)
        self.note = note

    @classmethod
    def of(cls, results: Any, errors: Sequence[LastwordError], note: str = "") -> PartialFailure:
        """Return the error for at least one of `errors`. `note` is added to the message."""
        first = errors[0]
        message = f"{first.message}; {note}" if note else first.message
        own = {"message": message, "results": results, "errors": tuple(errors), "note": note}
        error = rebuild(_partial_class(type(first)), (message,), first.__dict__ | own)
        if isinstance(error, StorageError) and isinstance(first, StorageError):
            error.errno = first.errno  # a C slot of OSError, not in __dict__
        assert isinstance(error, PartialFailure)
        return error

    @classmethod
    @contextmanager
    def collecting(cls, errors: list[LastwordError], *kinds: type[LastwordError]) -> Iterator[None]:
        """Add an error of a part of a call to `errors`, so that the other parts follow.

        `kinds`: the errors of a part; without any: damage, and errors of storage.
        """
        caught = kinds or (DataError, StorageError)
        try:
            yield
        except caught as error:
            errors.append(error)

    @classmethod
    def check(cls, results: T, errors: Sequence[LastwordError], note: str = "") -> T:
        """Return the results, or raise the error for them if there are errors."""
        if errors:
            raise cls.of(results, errors, note) from errors[0]
        return results

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.errors:
            return super().__reduce__()
        return PartialFailure.of, (self.results, self.errors, self.note)


_partial_classes: dict[type[LastwordError], type[LastwordError]] = {}


def _partial_class(kind: type[LastwordError]) -> type[LastwordError]:
    """Return the class of a PartialFailure whose first error is of class `kind`."""
    if issubclass(kind, PartialFailure):
        return kind
    if kind not in _partial_classes:
        name = f"PartialFailure[{kind.__name__}]"
        _partial_classes[kind] = type(name, (PartialFailure, kind), {"__module__": __name__})
    return _partial_classes[kind]


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, or None.

    A name that has changed, and one that lacks only the words before it, are found too.
    """
    import difflib  # loads only for a message

    names = list(known)
    for old, new in (("latest", "newest"), ("max_bytes", "memory")):
        changed = name.replace(old, new)
        if changed in names:
            return changed
    longer = [known_name for known_name in names if known_name.endswith(("_" + name, "." + name))]
    matches = difflib.get_close_matches(name, names, n=1, cutoff=cutoff) or longer
    return matches[0] if matches else None


def hint(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; nearest: x` for the most similar known name, or an empty text."""
    near = nearest(name, known, cutoff)
    return f"; nearest: {near}" if near else ""


# ---------------------------------------------------------------- exit 2: fix the call


class UsageError(LastwordError, ValueError):
    """The call is wrong: exit code 2. Also a ValueError."""

    exit_code = 2
    kafka_code = 42  # INVALID_REQUEST


class ReadOnlyError(UsageError):
    """A change of a directory or state that was opened to read."""

    kafka_code = 44  # POLICY_VIOLATION

    @classmethod
    def opened(cls, path: str) -> ReadOnlyError:
        """Return the error for a directory that was opened in mode "r"."""
        return cls(f'{path} was opened with mode "r"', remedy=f'lastword.open("{path}", "a")', file=path)


class NotALogDirError(UsageError):
    """The path is not a log directory."""

    kafka_code = 57  # LOG_DIR_NOT_FOUND


class UnknownTopicError(UsageError, KeyError):
    """There is no such topic; names the nearest. Also a KeyError."""

    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION

    @classmethod
    def named(cls, topic: str, where: str, known: Iterable[str]) -> UnknownTopicError:
        """Return the error for a topic that is not in `where`."""
        near = nearest(topic, known)
        hint = f"; nearest: {near!r}" if near else ""
        return cls(f"no topic {topic!r} in {where}{hint}", remedy="create_topic if it is new", file=where)


class TopicExistsError(UsageError):
    """The topic exists, and `exist_ok` was not given."""

    kafka_code = 36  # TOPIC_ALREADY_EXISTS


class InvalidTopicError(UsageError):
    """The name cannot be the name of a Kafka topic."""

    kafka_code = 17  # INVALID_TOPIC_EXCEPTION


class InvalidSettingError(UsageError):
    """One or several settings are wrong. `problems` has one line for each."""

    kafka_code = 40  # INVALID_CONFIG

    def __init__(self, message: str, *, problems: Iterable[str] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.problems = list(problems) or [message]


class UnknownSettingError(InvalidSettingError):
    """At least one of the wrong settings does not exist."""


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """Return the sentence for a setting that does not exist."""
    return f"unknown setting {name!r}{hint(name, known)}"


class NoPolicyError(UsageError):
    """Nothing may be removed, because cleanup.policy is unknown or does not allow it."""

    kafka_code = 44  # POLICY_VIOLATION

    @classmethod
    def of(cls, topic: str, directory: str = "DIR", unread: tuple[str, str] | None = None) -> NoPolicyError:
        """Return the error for a topic. The remedy names both values, because only the owner can choose.

        `unread`: why a value that decides cannot be read, and the remedy.
        """
        if unread is not None:
            place = f"{shlex.quote(directory)} {topic}"
            return cls(
                f"nothing may be removed from {topic}: {unread[0]}",
                remedy=unread[1].replace("DIR TOPIC", place),
                file=directory,
            )
        change = f"lastword config {shlex.quote(directory)} {topic} --set cleanup.policy="
        return cls(
            f"{topic} has no known cleanup.policy: nothing may be removed",
            remedy=f"`{change}compact` keeps the newest record of each key, `{change}delete` keeps records "
            "until they are too old or too many",
            file=directory,
        )


class OffsetOutOfRangeError(UsageError):
    """The offset is below the log start, above the log end, or of a topic that was created again."""

    kafka_code = 1  # OFFSET_OUT_OF_RANGE

    @classmethod
    def below(cls, partition: str, offset: int, log_start: int, why: str = "") -> OffsetOutOfRangeError:
        """Return the error for an offset below the log start."""
        reason = f" ({why})" if why else ""
        gone = f"{offset}-{log_start - 1} are" if offset < log_start - 1 else f"{offset} is"
        return cls(
            f"{partition}: offset {offset} is below log start {log_start}{reason}",
            remedy=f'start at "earliest"; {"offsets count from 0" if offset < 0 else f"{gone} gone"}',
            offset=offset,
        )

    @classmethod
    def above(cls, partition: str, offset: int, log_end: int) -> OffsetOutOfRangeError:
        """Return the error for an offset above the log end."""
        return cls(
            f"{partition}: offset {offset} is above log end {log_end}",
            remedy=f'{log_end} ("latest") at most; or is this another log than the offset was saved for?',
            offset=offset,
        )


class KeyRequiredError(UsageError):
    """A compacted topic needs a key in every record."""

    kafka_code = 87  # INVALID_RECORD

    @classmethod
    def of(cls, partition: str) -> KeyRequiredError:
        """Return the error for a partition."""
        return cls(
            f"{partition}: a compacted topic refuses a record without a key",
            remedy="give a key, or set cleanup.policy=delete",
        )


class SerializerError(UsageError):
    """A serializer refuses a key or value."""

    kafka_code = 87  # INVALID_RECORD


class RecordTooLargeError(UsageError):
    """The record is larger than max.message.bytes."""

    kafka_code = 10  # MESSAGE_TOO_LARGE


class LeaseRefusedError(UsageError):
    """Tombstones above the reader's position may be removed."""

    kafka_code = 1  # OFFSET_OUT_OF_RANGE


class SnapshotRefusedError(UsageError):
    """A state that starts from this restored file would be wrong."""


class TableRefusedError(UsageError):
    """An export cannot continue this table: another program made or changed it, or its columns differ."""


class SequenceGapError(UsageError):
    """The sequences of a producer have a gap."""

    kafka_code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerFencedError(UsageError):
    """A newer epoch of this producer id has written."""

    kafka_code = 47  # INVALID_PRODUCER_EPOCH


class CoordinatorFencedError(ProducerFencedError):
    """The marker comes from a transaction coordinator that was replaced."""

    kafka_code = 52  # TRANSACTION_COORDINATOR_FENCED


class TransactionStateError(UsageError):
    """The producer's transaction does not allow this operation now."""

    kafka_code = 48  # INVALID_TXN_STATE


class UnsupportedVersionError(UsageError):
    """Kafka's protocol, as it is supported here, does not have the message, the version or the field."""

    kafka_code = 35  # UNSUPPORTED_VERSION


class UnencodableMessageError(UsageError):
    """A field of a message of Kafka's protocol has a value that it cannot have."""

    kafka_code = -1  # UNKNOWN_SERVER_ERROR: the fault is in the program that made the message


class AuthenticationFailedError(UsageError):
    """A Kafka cluster does not accept this client's credentials, or the client not its certificate."""

    kafka_code = 58  # SASL_AUTHENTICATION_FAILED


class NotAuthorizedError(UsageError):
    """A Kafka cluster does not allow this client's request."""

    kafka_code = 29  # TOPIC_AUTHORIZATION_FAILED


class ClusterDiffersError(UsageError):
    """The directory is of another Kafka cluster or node, or has copies of topics from another cluster."""

    kafka_code = 104  # INCONSISTENT_CLUSTER_ID


class SparkOptionError(UsageError):
    """The Spark source does not support this option or column."""

    kafka_code = 42  # INVALID_REQUEST


# ---------------------------------------------------------------- exit 3: the bytes are bad


class DataError(LastwordError):
    """Damaged or unsupported bytes. `code` is a short stable name of the problem, for reports and JSON.

    A message that does not name the file gets file and position in front.
    """

    exit_code = 3
    kafka_code = 2  # CORRUPT_MESSAGE
    code = "bad-data"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        remedy: str | None = None,
        file: str | None = None,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        if file is not None and file not in message:
            at = "" if position is None else f" position {position}"
            message = f"{file}{at}: {message}"
        super().__init__(message, remedy=remedy, file=file, position=position, offset=offset)
        if code is not None:
            self.code = code


class CorruptBatchError(DataError):
    """Length, CRC, count or fields of a batch contradict each other."""

    code = "corrupt-batch"

    @classmethod
    def crc(cls, file: str, position: int, offset: int, stored: int, computed: int) -> CorruptBatchError:
        """Return the error for a wrong checksum."""
        text = f"offset {offset} has CRC {stored:08x}, computed {computed:08x}"
        return cls.damage(text, "bad-crc", file, position, offset)

    @classmethod
    def damage(cls, text: str, code: str, file: str, position: int, offset: int) -> CorruptBatchError:
        """Return the error for damage of a log that nothing but a copy of the file repairs."""
        remedy = "restore the file from a copy; `lastword verify` lists all damage"
        return cls(text, code=code, remedy=remedy, file=file, position=position, offset=offset)


LOST_OBJECT = "lost-object"
"""`code` of the error for an object that the newest version of a log in a bucket needs, and that is gone."""


class CorruptFileError(DataError):
    """A checkpoint, index or properties file is damaged."""

    code = "corrupt-file"
    kafka_code = 56  # KAFKA_STORAGE_ERROR


class UnknownMagicError(DataError):
    """The message format is not supported."""

    code = "unknown-magic"
    kafka_code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class UnsupportedBatchError(DataError):
    """The operation does not support this kind of valid batch."""

    code = "unsupported-batch"
    kafka_code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class DecompressionLimitError(DataError):
    """The decompressed batch is larger than its limit."""

    code = "decompression-limit"
    kafka_code = 10  # MESSAGE_TOO_LARGE


class InconsistentTopicIdError(DataError):
    """The partition belongs to another topic of the same name."""

    code = "topic-id"
    kafka_code = 103  # INCONSISTENT_TOPIC_ID


class DivergedLogError(DataError):
    """A copy of a log holds records that the Kafka cluster does not have."""

    code = "diverged"
    kafka_code = 75  # UNKNOWN_LEADER_EPOCH


class DuplicatePartitionError(DataError):
    """One partition is in two directories."""

    code = "duplicate-partition"
    kafka_code = 56  # KAFKA_STORAGE_ERROR


class NotAPartitionError(DataError):
    """A link, pipe or file has the name of a partition or of a log."""

    code = "not-a-partition"
    kafka_code = 56  # KAFKA_STORAGE_ERROR

    @classmethod
    def link(cls, path: str) -> NotAPartitionError:
        """Return the error for a symbolic link."""
        return cls(
            f"{path} is a symbolic link, which is not followed",
            remedy="replace the link with its target",
            file=path,
        )

    @classmethod
    def of(cls, path: str, expected: str) -> NotAPartitionError:
        """Return the error for a path that is not a file or directory as expected."""
        return cls(f"{path} is not a {expected}", remedy="move it away, and restore the partition", file=path)


class ValueFormatError(DataError):
    """A key or value of a record is not in the format, or not of the type, in which it is read."""

    code = "value-format"
    kafka_code = 87  # INVALID_RECORD

    @classmethod
    def at(cls, partition: str, offset: int, column: str, name: str, reason: str) -> ValueFormatError:
        """Return the error for a column of a record that is read in the format `name`."""
        return cls(
            f"{partition}: offset {offset}: the {column} cannot be read as {name}: {reason}",
            remedy="mode=permissive reads null and keeps the bytes in column _corrupt_record; or correct "
            f"{column}_format or the type of the column",
            offset=offset,
        )


class TruncatedObjectError(DataError):
    """An object in a store ends before the bytes that were requested."""

    code = "truncated-object"
    kafka_code = 56  # KAFKA_STORAGE_ERROR

    @classmethod
    def of(cls, url: str, end: int, size: int | None, files: str = "") -> TruncatedObjectError:
        """Return the error for bytes up to `end` of an object of `size` bytes; None if that is not known.

        `files`: names of the files whose bytes are missing.
        """
        text = f"the object ends before byte {end}" + ("" if size is None else f": it has {size} bytes")
        return cls(
            f"{text}; needed by {files}" if files else text,
            remedy="restore the object from a copy; `lastword verify` lists all damage",
            file=url,
            position=size,
        )


class MalformedMessageError(DataError):
    """Bytes of a connection or a record that are no message of Kafka's protocol."""

    kafka_code = 42  # INVALID_REQUEST


class FrameTooLargeError(MalformedMessageError):
    """A message announces more bytes than the connection accepts."""


class CertificateError(DataError):
    """A rewrite does not hold the expected records; nothing was published."""

    code = "certificate"


class QuarantinedError(DataError):
    """The partition is in quarantine after an earlier DataError."""

    code = "quarantined"
    kafka_code = 56  # KAFKA_STORAGE_ERROR


# ---------------------------------------------------------------- exit 4: try again


class BusyError(LastwordError):
    """The resource is in use: exit code 4. The call may succeed later."""

    exit_code = 4
    retriable = True
    kafka_code = 7  # REQUEST_TIMED_OUT


class ConflictError(BusyError):
    """The newest record of a key is not the one that `expect=` names. Nothing was written.

    `offset` is that of the newest record; None if the key has no value.
    """

    retriable = False  # the same call fails again


class ReadOvertakenError(BusyError):
    """A cleaning replaced files of a read that must show one moment, and the files were not open."""

    @classmethod
    def of(cls, partition: str, directory: str) -> ReadOvertakenError:
        """Return the error for a partition."""
        return cls(
            f"{partition}: a cleaning replaced files while their newest values were read; the values read so "
            "far are not complete",
            remedy="read again; if it happens often, allow the process more open files (ulimit -n)",
            file=directory,
        )


class UncertainCommitError(BusyError):
    """The store's answers do not show whether a commit to a log in a bucket came in."""

    @classmethod
    def of(cls, url: str, why: str) -> UncertainCommitError:
        """Return the error for a commit to the log of this URL."""
        return cls(
            f"{url}: {why}",
            remedy="read the log before you repeat the call; a call with producer= and sequence= may be "
            "repeated at any time",
            file=url,
        )


class UploadsGoneError(BusyError):
    """A commit to a bucket came so late that the objects it names may have been removed."""


class ServerFencedError(BusyError):
    """Another server of a log in a bucket has taken over: this one commits nothing any more."""

    retriable = False
    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER

    @classmethod
    def of(cls, url: str, epoch: int, newest: int) -> ServerFencedError:
        """Return the error for a server of one epoch, after a takeover of a newer one, or if one may be."""
        why = f"is fenced by epoch {newest}" if newest > epoch else "is not renewed in time"
        return cls(
            f"{url}: server epoch {epoch} {why}; nothing was committed",
            remedy="send the request to the active server, which the metadata name",
            file=url,
        )


class RegistryError(BusyError):
    """A schema registry does not answer, or refuses the request."""


class BrokerUnreachableError(BusyError):
    """A Kafka broker cannot be reached, or does not answer in time."""


class BrokerRefusedError(BusyError):
    """A Kafka broker answers a request with an error."""


class LogDirLockedError(BusyError):
    """`pid` and `process` name the holder; None where the system hides them (another PID namespace)."""

    def __init__(
        self, message: str, *, pid: int | None = None, process: str | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.pid = pid
        self.process = process

    @classmethod
    def held(cls, path: str, pid: int | None, process: str | None) -> LogDirLockedError:
        """Return the error for a directory that another process holds; unknown facts are None."""
        holder = "another process" if pid is None else f"process {pid}" + (f" ({process})" if process else "")
        instead = "use or close the object that has it open" if process == "this process" else "stop it"
        return cls(
            f"{path} is in use by {holder}",
            remedy=f'{instead}, or read without a lock: lastword.open("{path}")',
            file=path,
            pid=pid,
            process=process,
        )


# ---------------------------------------------------------------- exit 5: make room


class CapacityError(LastwordError):
    """There is not enough room: exit code 5."""

    exit_code = 5
    retriable = True
    kafka_code = 56  # KAFKA_STORAGE_ERROR


class DiskFullError(CapacityError):
    """`needed_bytes` did not fit in `free_bytes`; the incomplete write was undone."""

    def __init__(
        self, message: str, *, needed_bytes: int | None = None, free_bytes: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes

    @classmethod
    def of(cls, action: str, where: str, needed_bytes: int, free_bytes: int, file: str) -> DiskFullError:
        """Return the error for a file that does not fit on its drive."""
        needed, free = format_bytes(needed_bytes), format_bytes(free_bytes)
        return cls(
            f"{action} needs {needed} on {where}, {free} free; log unchanged",
            remedy="free space, or clean smaller partitions first",
            file=file,
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
        )


class StateTooLargeError(CapacityError):
    """A restored state is larger than its `memory`."""

    retriable = False


class TransactionTooLargeError(CapacityError):
    """The changes of a transaction take more memory than its `max_bytes`. Nothing was written."""


# ---------------------------------------------------------------- exit 7: install something


class MissingError(LastwordError, ImportError):
    """A package must be installed: exit code 7. Also an ImportError."""

    exit_code = 7
    kafka_code = 76  # UNSUPPORTED_COMPRESSION_TYPE, the one case that a client could meet

    @classmethod
    def package(cls, feature: str, needs: str, requirement: str) -> MissingError:
        """Return the error for a package. `requirement` is that of pyproject.toml."""
        return cls(f"{feature} needs {needs}", remedy=f'pip install "{requirement}"')
