"""What every format of keys and values has: its class, its errors, and a walk over a type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.errors import SerializerError


class ValueRefused(ValueError):
    """A value that does not fit its format or type; `path` is the place within the value."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def inside(self, name: str) -> ValueRefused:
        """Return the error with the name of the enclosing field in front of its path."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return ValueRefused(self.reason, f"{name}{joint}{self.path}")

    def __str__(self) -> str:
        return f"field {self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column. `problems` has a reason for each row that could not be decoded; it is null."""

    column: pa.Array
    problems: dict[int, str]


class ValueFormat(ABC):
    """One format with its options. Instances travel to Spark's tasks by pickle."""

    name: ClassVar[str]
    has_deletions: ClassVar[bool] = False
    """Whether bytes may decode to null, which is a deletion; in other formats they are malformed."""

    @property
    def serializer(self) -> str:
        """The serializer with which Python reads such values; a new topic stores it."""
        return "bytes"

    @property
    def has_variant(self) -> bool:
        """Whether values of Spark's type VARIANT are written and read."""
        return False

    def own_type(self) -> pa.DataType | None:
        """Return the type of a decoded column, or None if the caller must give it.

        Raises:
            ValueError: The schema has no type in Spark. The caller may give a type without the field.
        """
        return None

    def unselected_type(self) -> pa.DataType | None:
        """Return a type in which a column is decoded that the caller does not select, or None."""
        try:
            return self.own_type()
        except ValueError:
            return None

    @abstractmethod
    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""

    def for_writing(self, kind: pa.DataType) -> ValueFormat:
        """Return the format with what a task needs to write a type. The driver calls it once for a write."""
        return self

    @abstractmethod
    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""

    @abstractmethod
    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""

    def deletion(self, kind: pa.DataType) -> bytes | None:
        """Return the value to write in front of each record without a value, or None."""
        return None

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the bytes of each value as a binary array; a null stays null.

        Raises:
            SerializerError: A value has no form in this format.
        """
        write = self.encoder(column.type)
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise SerializerError(
                f"a value cannot be written as {self.name}: {error}",
                remedy="dates and timestamps are of the years 1 to 9999",
            ) from None
        try:
            encoded = [None if value is None else write(value) for value in values]
        except ValueRefused as refused:
            raise SerializerError(
                f"a value cannot be written as {self.name}: {refused}", remedy="change or filter the row"
            ) from None
        return pa.array(encoded, pa.binary())

    def decode(self, column: pa.Array, kind: pa.DataType) -> Decoded:
        """Return the values of a binary array as a column of the type; a null stays null."""
        read = self.decoder(kind)
        values: list[Any] = []
        problems: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = read(data)
                    if value is None and not self.has_deletions:
                        raise ValueRefused("it is null; a deletion is a record without a value")
                except ValueRefused as refused:
                    problems[row] = str(refused)
                    value = None
            values.append(value)
        try:
            return Decoded(pa.array(values, kind), problems)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
        for row, value in enumerate(values):  # a value that only Arrow refuses, such as a lone surrogate
            if (problem := misfit(value, kind)) is not None:
                problems[row] = str(problem)
                values[row] = None
        return Decoded(pa.array(values, kind), problems)


def misfit(value: Any, kind: pa.DataType) -> ValueRefused | None:
    """Return the innermost place of a value that Arrow refuses for a type; None if there is none."""
    try:
        pa.array([value], kind)
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        reason = f"its text has the lone surrogate {surrogate!r}, which UTF-8 cannot hold"
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        reason = str(error)
    else:
        return None
    parts: list[tuple[str, Any, pa.DataType]] = []
    if pa.types.is_struct(kind) and isinstance(value, dict):
        parts = [(field.name, value.get(field.name), field.type) for field in kind]
    elif pa.types.is_map(kind) and isinstance(value, list):
        parts = [(f"[{key!r}]", item, kind.item_type) for key, item in value]
    elif is_list(kind) and isinstance(value, list):
        parts = [(f"[{number}]", item, kind.value_type) for number, item in enumerate(value)]
    for name, item, child in parts:
        if (inner := misfit(item, child)) is not None:
            return inner.inside(name)
    return ValueRefused(reason)


def first_problem(kind: pa.DataType, refuse: Callable[[pa.DataType], str | None]) -> str | None:
    """Return the first problem of a type or of a type within it, with the path of its field."""
    children: list[tuple[str, pa.DataType]] = []
    if pa.types.is_struct(kind):
        children = [(field.name, field.type) for field in kind]
        names = [name for name, _ in children]
        if len(set(names)) < len(names):
            return "two fields of a struct have one name"
    elif pa.types.is_map(kind):
        children = [("key", kind.key_type), ("value", kind.item_type)]
    elif is_list(kind):
        children = [("element", kind.value_type)]
    problem = refuse(kind)
    for name, child in children:
        if problem is None and (inner := first_problem(child, refuse)) is not None:
            problem = f"{name}: {inner}"
    return problem


def is_text(kind: pa.DataType) -> bool:
    """Return whether the type is a string of either offset width."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether the type is binary of either offset width."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_same(own: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether two types are equal except for offset widths and the time zone of a timestamp."""
    if pa.types.is_timestamp(own) and pa.types.is_timestamp(kind):
        return own.unit == kind.unit and (own.tz is None) == (kind.tz is None)
    same_width = (is_text(own) and is_text(kind)) or (is_binary(own) and is_binary(kind))
    return bool(same_width or own == kind)


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of either offset width."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def widens(kind: pa.DataType, own: pa.DataType) -> bool:
    """Return whether every value of `kind` is one of `own`."""
    types = pa.types
    if types.is_signed_integer(kind) and types.is_signed_integer(own):
        return bool(kind.bit_width <= own.bit_width)
    if types.is_decimal(kind) and types.is_decimal(own):
        return bool(kind.scale <= own.scale and kind.precision - kind.scale <= own.precision - own.scale)
    return bool(kind == pa.float32() and own == pa.float64())
