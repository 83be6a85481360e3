"""The errors of storage, exit code 6: a drive or its permissions, and an object store."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from lastword.errors.base import LastwordError, rebuild


class StorageError(LastwordError, OSError):
    """An operating system error with its path; `errno` as the system gave it."""

    exit_code = 6
    kafka_code = 56  # KAFKA_STORAGE_ERROR

    def __init__(self, message: str, *, errno: int | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__dict__.copy()
        state["errno"] = self.errno  # a C slot of OSError, not in __dict__
        return _rebuild_storage, (type(self), self.args, state)


def _rebuild_storage(kind: type[StorageError], args: tuple[Any, ...], state: dict[str, Any]) -> LastwordError:
    number = state.pop("errno")
    error = rebuild(kind, args, state)
    assert isinstance(error, StorageError)
    error.errno = number
    return error


class SyncFailedError(StorageError):
    """An fsync failed: bytes written since the last successful fsync may be lost.

    The kernel reports the error only once, so a second fsync would succeed without writing. The directory
    stays offline until it is opened and recovered again.
    """

    @classmethod
    def of(cls, file: str, why: str, root: str, errno: int | None) -> SyncFailedError:
        """Return the error for a failed fsync of `file`, which takes `root` offline."""
        return cls(
            f"fsync of {file}: {why}; {root} is offline",
            remedy="check the drive, open again",
            file=file,
            errno=errno,
        )


class NotPermittedError(StorageError, PermissionError):
    """The system forbids the call: permissions of the file, or a drive that is mounted read-only."""

    @classmethod
    def verb(cls, url: str, verb: str) -> NotPermittedError:
        """Return the error for a request that the credentials of an object store do not allow."""
        return cls(
            f"{url}: the credentials do not allow to {verb}",
            remedy=f"allow these credentials to {verb} below this URL, or use others",
            file=url,
        )


class LockLostError(StorageError):
    """Another process may have locked the directory. It stays offline here until it is opened again."""

    @classmethod
    def of(cls, file: str, how: str) -> LockLostError:
        """Return the error for a lock file that was removed or replaced."""
        directory = file.rpartition("/")[0] or "."
        return cls(
            f"{file} was {how} while this process held the lock: another process may write there, "
            f"so {directory} is offline here",
            remedy="find the program that changed the file; then close the directory and open it again",
            file=file,
        )


class OfflineError(StorageError):
    """The file or partition is in a directory that is offline."""

    @classmethod
    def of(cls, subject: str, directory: str, why: LastwordError | None) -> OfflineError:
        """Return the error for a file or partition in an offline directory."""
        reason = f" ({why.message})" if why is not None else ""
        return cls(
            f"{subject} is in {directory}, which is offline{reason}",
            remedy="check the drive, then open again; partitions in other directories are served",
            file=directory,
            errno=why.errno if isinstance(why, StorageError) else None,
        )


class WrongUserError(StorageError):
    """`user`: the name of the user to run as. Nothing was changed."""

    user: str


class FileVanishedError(StorageError, FileNotFoundError):
    """The file no longer exists. Also a FileNotFoundError."""

    retriable = True


class NotSharedError(StorageError):
    """A worker cannot see the directory that the driver opened."""


class FileTakenError(StorageError, FileExistsError):
    """The file exists already. Also a FileExistsError."""


# Object storage: `file` is the URL of the object, without credentials.


class UncertainRequestError(StorageError):
    """An object store gave no answer, or a server error. A write may have taken effect, or may do so yet."""

    retriable = True
    _why = "{}"
    _remedy = "try again; if it still fails, check the network and the options endpoint and timeout"

    @classmethod
    def of(cls, url: str, verb: str, why: str, *, write: bool) -> Self:
        """Return the error for a request. `write`: the request changes the store."""
        effect = "; the change may have taken effect" if write else ""
        return cls(f"cannot {verb} {url}: {cls._why.format(why)}{effect}", remedy=cls._remedy, file=url)


class ThrottledError(UncertainRequestError):
    """An object store limits the rate of requests."""

    _why = "the store limits the rate of requests ({})"
    _remedy = "try again later; fewer and larger commits send fewer requests"


class _StoreError(StorageError):
    """An error of an object store, or of an object. Its class has the sentence and the remedy."""

    _says: ClassVar[str]
    _remedy: ClassVar[str]

    @classmethod
    def of(cls, url: str, why: str = "") -> Self:
        """Return the error for a URL. `why`: the reason, if the sentence has one."""
        return cls(cls._says.format(url=url, why=why), remedy=cls._remedy, file=url)


class CredentialsRefusedError(_StoreError, PermissionError):
    """An object store refuses the credentials, or there are none. Also a PermissionError."""

    _says = "{url}: the store refuses the credentials: {why}"
    _remedy = "set the credentials in the environment or in storage_options"


class BucketMissingError(_StoreError, FileNotFoundError):
    """There is no such bucket or container. Also a FileNotFoundError."""

    _says = "{url}: the bucket does not exist"
    _remedy = "check the URL and the options region and endpoint; lastword makes no bucket"


class ObjectVanishedError(_StoreError, FileNotFoundError):
    """There is no such object. Also a FileNotFoundError."""

    retriable = True
    _says = "{url} does not exist"
    _remedy = "check the URL; if another process has just removed the object, try again"


class ObjectTakenError(_StoreError, FileExistsError):
    """An object of this name exists. Also a FileExistsError."""

    _says = "{url} exists already"
    _remedy = "remove the object, or use another prefix"


class SwapRefusedError(_StoreError):
    """The object has another version than the one to replace, or does not exist."""

    retriable = True
    _says = "{url} was changed by another process since it was read"
    _remedy = "read the object again, and try again"


class ClockSkewError(_StoreError):
    """The clock of this machine and the clock of an object store differ too much."""

    _says = "{url}: {why}"
    _remedy = "set this machine's clock, for example with NTP"


class UnconditionalStoreError(_StoreError):
    """An object store does not do what a log needs.

    It does not enforce conditional writes, so that two writers could overwrite each other; or it does not
    answer reads of ranges, or reads with a condition.
    """

    _says = "{url}: the store does not enforce conditional writes: {why}; nothing was changed"
    _remedy = (
        "use a store, or a newer version of this one, that supports If-None-Match and If-Match on writes; "
        "such a store can be read"
    )

    @classmethod
    def reads(cls, url: str, why: str) -> UnconditionalStoreError:
        """Return the error for a store whose reads cannot be relied on."""
        return cls(
            f"{url}: the store cannot hold a log: {why}",
            remedy="use a store, or a newer version of this one, that supports Range and If-None-Match on "
            "reads",
            file=url,
        )
