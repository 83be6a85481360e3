"""`LastwordError`, the class of all errors of lastword."""

from __future__ import annotations

from typing import Any, ClassVar


class LastwordError(Exception):
    """Base class. Attributes: message, remedy, file, position (byte in the file), offset (of a record).

    On the class: `exit_code` (of the command line), `retriable` (the same call may succeed later),
    `kafka_code` (the error code of Kafka's protocol).
    """

    __module__ = "lastword.errors"
    exit_code: ClassVar[int] = 70
    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1  # UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls) -> None:
        """Name the package in tracebacks and pickles, in whichever of its modules a class is."""
        if cls.__module__.startswith("lastword.errors."):
            cls.__module__ = "lastword.errors"

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        file: str | None = None,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.file = file
        self.position = position
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self.args, self.__dict__.copy())


def rebuild(kind: type[LastwordError], args: tuple[Any, ...], state: dict[str, Any]) -> LastwordError:
    """Unpickle without calling `__init__`, whose keywords differ from class to class."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
