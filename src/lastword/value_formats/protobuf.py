"""Protobuf values: one message, as Spark's `to_protobuf` writes it.

The message is described by a descriptor file (`protoc --include_imports --descriptor_set_out=user.desc`) and
its name. Types are those of Spark's `from_protobuf`; unsigned numbers have the next wider type.

    message   struct              int32, sint32, sfixed32    int        repeated    array without nulls
    map       map                 int64, sint64, sfixed64    bigint     Timestamp   timestamp
    enum      string, its name    uint32, fixed32            bigint     Duration    interval day to second
    string, bytes, bool, float, double: the same             uint64, fixed64        decimal(20,0)

A field that tracks presence (`optional`, a message, a member of a oneof, proto2) is null if it is absent, or
has its default. Another field cannot be absent: it is NOT NULL, and reads 0, false or an empty text.

Reading. The type of a column may have fewer fields than the message. Unknown fields are dropped, and
nanoseconds of times. Writing. Refused are a field that the message lacks, a null in a field without absence,
and two members of a oneof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.errors import MissingError
from lastword.value_formats.interface import ValueFormat, ValueRefused, is_list, is_same, widens

Convert = Callable[[Any], Any]

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def need_protobuf() -> None:
    """Raise MissingError unless protobuf is installed."""
    try:
        import google.protobuf  # noqa: F401
    except ImportError:
        raise MissingError.package(
            "the format protobuf", "protobuf, on every machine", "protobuf>=6.31"
        ) from None


def files_of(descriptors: bytes) -> list[Any]:
    """Return the files (`FileDescriptorProto`) of a descriptor file. ValueError if it is malformed."""
    return list(_parsed("FileDescriptorSet", descriptors, "file").file)


def file_of(descriptor: bytes) -> Any:
    """Return the file of a serialized `FileDescriptorProto`. ValueError if it is malformed."""
    return _parsed("FileDescriptorProto", descriptor, "of a file")


def _parsed(kind: str, data: bytes, what: str) -> Any:
    need_protobuf()
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return getattr(descriptor_pb2, kind).FromString(data)
    except DecodeError as error:
        raise ValueError(f"is no descriptor {what}: {error}") from None


def descriptors_of(name: str, files: Mapping[str, Any]) -> bytes:
    """Return a descriptor file of a file, behind the files that it imports.

    A missing file of `google.protobuf` is added. Another missing file is empty: perhaps it has only options,
    which no value has.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    whole = FileDescriptorSet()
    added = set()

    def add(name: str) -> None:
        if name not in added:
            added.add(name)
            file = files[name] if name in files else _well_known(name)
            for imported in file.dependency:
                add(imported)
            whole.file.append(file)

    add(name)
    return bytes(whole.SerializeToString(deterministic=True))


def _well_known(name: str) -> Any:
    """Return a file that each schema registry has, or an empty file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name=name)
    if name == "confluent/type/decimal.proto":  # the decimals of Kafka Connect
        file.package, file.syntax = "confluent.type", "proto3"
        decimal = file.message_type.add(name="Decimal")
        for number, part in enumerate(("value", "precision", "scale"), 1):
            member = decimal.field.add(name=part, number=number, label="LABEL_OPTIONAL")
            member.type = (member.TYPE_BYTES, member.TYPE_UINT32, member.TYPE_INT32)[number - 1]
    if re.fullmatch(r"google/(protobuf|type)/\w+\.proto", name):
        with suppress(ImportError):
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            module.DESCRIPTOR.CopyToProto(file)
    return file


def messages_of(file: Any) -> dict[str, tuple[int, ...]]:
    """Return the full names of the messages of a file, each with the indexes of its place in the file."""
    places: dict[str, tuple[int, ...]] = {}

    def add(prefix: str, messages: Any, outer: tuple[int, ...]) -> None:
        for number, message in enumerate(messages):
            if not message.options.map_entry:
                name, place = f"{prefix}{message.name}", (*outer, number)
                places[name] = place
                add(f"{name}.", message.nested_type, place)

    add(f"{file.package}." if file.package else "", file.message_type, ())
    return places


@lru_cache(maxsize=64)
def pool_of(descriptors: bytes) -> Any:
    """Return the types of a descriptor file. ValueError if a file is malformed or missing."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, files = DescriptorPool(), files_of(descriptors)
    missing = {name for file in files for name in file.dependency} - {file.name for file in files}
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"lacks {names}, which its files import (protoc --include_imports)")
    try:
        for file in files:
            pool.Add(file)
    except TypeError as error:
        raise ValueError(f"cannot be used: {error}") from None
    return pool


@lru_cache(maxsize=64)
def message_of(descriptors: bytes, name: str) -> Any:
    """Return the class of a message in a descriptor file. ValueError if it is not there."""
    need_protobuf()
    from google.protobuf.message_factory import GetMessageClass

    try:
        return GetMessageClass(pool_of(descriptors).FindMessageTypeByName(name))
    except KeyError:
        names = ", ".join(sorted(name for file in files_of(descriptors) for name in messages_of(file)))
        raise ValueError(f"{name} is not in the file, which has {names}") from None


@dataclass(frozen=True, slots=True)
class ProtobufFormat(ValueFormat):
    """A message, and the bytes of the descriptor file that has it.

    With `lenient` a nullable field of the column that the message lacks is read as null, and a number may be
    of a wider type.
    """

    descriptors: bytes = field(repr=False)
    message: str
    lenient: bool = False
    name: ClassVar[str] = "protobuf"

    def own_type(self) -> pa.DataType:
        """Return the type of the message. Raises ValueRefused for a message without a type in Spark."""
        return struct_of(self._class().DESCRIPTOR)

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""
        try:
            converter = writer_of if writing else reader_of
            converter(self._class().DESCRIPTOR, kind)
        except ValueError as error:
            return str(error)
        return None

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""
        from google.protobuf.message import EncodeError

        new, fill = self._class(), writer_of(self._class().DESCRIPTOR, kind)

        def encode(value: Any) -> bytes:
            message = new()
            fill(message, value)
            try:
                return bytes(message.SerializeToString(deterministic=True))
            except EncodeError as error:  # a required field is null
                raise ValueRefused(str(error)) from None

        return encode

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""
        from google.protobuf.message import DecodeError

        parse = self._class().FromString
        read = reader_of(self._class().DESCRIPTOR, kind, lenient=self.lenient)

        def decode(data: bytes) -> Any:
            try:
                message = parse(data)
            except DecodeError as error:
                raise ValueRefused(f"it is no {self.message}: {error}") from None
            if not message.IsInitialized():
                missing = ", ".join(message.FindInitializationErrors())
                raise ValueRefused(f"it is no {self.message}: the required fields {missing} are missing")
            return read(message)

        return decode

    def _class(self) -> Any:
        return message_of(self.descriptors, self.message)


# ---------------------------------------------------------------- the type of a message


def struct_of(descriptor: Any, within: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a message. Raises ValueRefused."""
    if descriptor.full_name in within:
        raise ValueRefused(f"message {descriptor.full_name} contains itself, which no type of Spark's can")
    if not descriptor.fields:
        raise ValueRefused(f"message {descriptor.full_name} has no field")
    inside = (*within, descriptor.full_name)
    return pa.struct([_arrow_field(member, inside) for member in descriptor.fields])


def _arrow_field(member: Any, within: tuple[str, ...]) -> pa.Field:
    try:
        if _is_map(member):
            key, value = _map_parts(member)
            kind = pa.map_(scalar_of(key), pa.field("value", _item_type(value, within), False))
        elif member.is_repeated:
            kind = pa.list_(pa.field("element", _item_type(member, within), False))
        else:
            kind = _item_type(member, within)
    except ValueRefused as refused:
        raise refused.inside(member.name) from None
    return pa.field(member.name, kind, _may_be_null(member))


def _item_type(member: Any, within: tuple[str, ...]) -> pa.DataType:
    if member.message_type is None:
        return scalar_of(member)
    if member.message_type.full_name == TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if member.message_type.full_name == DURATION:
        return pa.duration("us")
    return struct_of(member.message_type, within)


def scalar_of(member: Any) -> pa.DataType:
    """Return the type of a field that is no message, or of its elements."""
    return {
        member.TYPE_BOOL: pa.bool_(),
        member.TYPE_INT32: pa.int32(), member.TYPE_SINT32: pa.int32(), member.TYPE_SFIXED32: pa.int32(),
        member.TYPE_INT64: pa.int64(), member.TYPE_SINT64: pa.int64(), member.TYPE_SFIXED64: pa.int64(),
        member.TYPE_UINT32: pa.int64(), member.TYPE_FIXED32: pa.int64(),
        member.TYPE_UINT64: pa.decimal128(20, 0), member.TYPE_FIXED64: pa.decimal128(20, 0),
        member.TYPE_FLOAT: pa.float32(), member.TYPE_DOUBLE: pa.float64(),
        member.TYPE_STRING: pa.string(), member.TYPE_ENUM: pa.string(), member.TYPE_BYTES: pa.binary(),
    }[member.type]  # fmt: skip


def _is_map(member: Any) -> bool:
    return bool(member.is_repeated and member.message_type and member.message_type.GetOptions().map_entry)


def _may_be_null(member: Any) -> bool:
    """Return whether a field may be absent, and absence differs from every value."""
    return bool(member.has_presence and not member.is_required and not member.has_default_value)


def _check(own: pa.DataType, kind: pa.DataType, *, lenient: bool = False) -> None:
    if not is_same(own, kind) and not (lenient and widens(own, kind)):
        raise ValueRefused(f"the message has {own}, not {kind}")


def _members(descriptor: Any, kind: pa.DataType, *, lenient: bool = False) -> list[tuple[Any, pa.Field]]:
    """Return the field of the message for each field of a type. Raises ValueRefused."""
    if not pa.types.is_struct(kind):
        raise ValueRefused(f"message {descriptor.full_name} is a struct, not {kind}")
    members = []
    for item in kind:
        if item.name not in descriptor.fields_by_name:
            if lenient and item.nullable:
                continue
            names = ", ".join(descriptor.fields_by_name.keys())
            raise ValueRefused(f"message {descriptor.full_name} has the fields {names}", item.name)
        members.append((descriptor.fields_by_name[item.name], item))
    if len({item.name for _, item in members}) < len(members):
        raise ValueRefused("two fields of a struct have one name")
    return members


def _check_map(kind: pa.DataType) -> None:
    if not pa.types.is_map(kind):
        raise ValueRefused(f"the message has a map, not {kind}")


def _map_parts(member: Any) -> tuple[Any, ...]:
    """Return the fields for the keys and the values of a map."""
    return tuple(member.message_type.fields_by_name[name] for name in ("key", "value"))


def _conversions(member: Any, kind: pa.DataType, *, lenient: bool = False) -> tuple[Convert, Convert]:
    """Return the functions that read and write a value of a field that is no message. Raises ValueRefused."""
    _check(scalar_of(member), kind, lenient=lenient)
    if member.type in (member.TYPE_UINT64, member.TYPE_FIXED64):
        return Decimal, int
    if member.type == member.TYPE_STRING:
        return _text, _itself
    if member.enum_type is None:
        return _itself, _itself
    names = {number: value.name for number, value in member.enum_type.values_by_number.items()}
    numbers = {name: value.number for name, value in member.enum_type.values_by_name.items()}

    def read_enum(number: int) -> str:
        if number not in names:
            raise ValueRefused(f"{number} is no value of {member.enum_type.full_name}")
        return str(names[number])

    def write_enum(name: str) -> int:
        if name not in numbers:
            raise ValueRefused(f"{name!r} is no value of {member.enum_type.full_name}: {', '.join(numbers)}")
        return int(numbers[name])

    return read_enum, write_enum


def _itself(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    if type(value) is bytes:  # proto2 does not check strings
        raise ValueRefused(f"it is not UTF-8, and begins with {value[:12]!r}")
    return value


# ---------------------------------------------------------------- reading


def reader_of(descriptor: Any, kind: pa.DataType, *, lenient: bool = False) -> Convert:
    """Return a function from a message to a value of a type with no other fields. Raises ValueRefused."""
    parts: list[tuple[str, Convert]] = []
    for member, item in _members(descriptor, kind, lenient=lenient):
        try:
            parts.append((member.name, _field_reader(member, item, lenient)))
        except ValueRefused as refused:
            raise refused.inside(member.name) from None

    def read_message(message: Any) -> dict[str, Any]:
        row = {}
        for name, read in parts:
            try:
                row[name] = read(message)
            except ValueRefused as refused:
                raise refused.inside(name) from None
        return row

    return read_message


def _field_reader(member: Any, item: pa.Field, lenient: bool) -> Convert:
    """Return a function from a message to the value of one of its fields."""
    name, kind = member.name, item.type
    if _is_map(member):
        _check_map(kind)
        key, value = _map_parts(member)
        read_key = _item_reader(key, kind.key_type, lenient)
        read_value = _item_reader(value, kind.item_type, lenient)
        return lambda message: [(read_key(key), read_value(v)) for key, v in getattr(message, name).items()]
    if member.is_repeated:
        if not is_list(kind):
            raise ValueRefused(f"the message has an array, not {kind}")
        read_element = _item_reader(member, kind.value_type, lenient)
        return lambda message: [read_element(element) for element in getattr(message, name)]
    read = _item_reader(member, kind, lenient)
    if not _may_be_null(member):
        return lambda message: read(getattr(message, name))
    if not item.nullable:
        raise ValueRefused("it is NOT NULL, and the field may be absent")
    return lambda message: read(getattr(message, name)) if message.HasField(name) else None


def _item_reader(member: Any, kind: pa.DataType, lenient: bool) -> Convert:
    own = None if member.message_type is None else member.message_type.full_name
    if own in (TIMESTAMP, DURATION):
        _check(_item_type(member, ()), kind)
        return _time if own == TIMESTAMP else _interval
    if member.message_type is not None:
        return reader_of(member.message_type, kind, lenient=lenient)
    return _conversions(member, kind, lenient=lenient)[0]


def _time(message: Any) -> datetime:
    try:
        return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise ValueRefused(f"a time of {message.seconds} seconds is not of the years 1 to 9999") from None


def _interval(message: Any) -> timedelta:
    micros = abs(message.nanos) // 1000
    try:
        return timedelta(seconds=message.seconds, microseconds=micros if message.nanos > 0 else -micros)
    except OverflowError:
        raise ValueRefused(f"an interval of {message.seconds} seconds has no type in Spark") from None


# ---------------------------------------------------------------- writing


def writer_of(descriptor: Any, kind: pa.DataType) -> Callable[[Any, Any], None]:
    """Return a function that fills a message with a value of a type. Raises ValueRefused."""
    members = _members(descriptor, kind)
    given = {member.name for member, _ in members}
    for member in descriptor.fields:
        if member.is_required and member.name not in given:
            raise ValueRefused("the message requires the field, and the column lacks it", member.name)
    parts: list[tuple[str, bool, Callable[[Any, Any], None]]] = []
    for member, item in members:
        try:
            parts.append((member.name, _may_be_null(member), _field_writer(member, item.type)))
        except ValueRefused as refused:
            raise refused.inside(member.name) from None
    oneofs = [[member.name for member in oneof.fields if member.name in given] for oneof in descriptor.oneofs]
    choices = [names for names in oneofs if len(names) > 1]

    def fill(message: Any, row: dict[str, Any]) -> None:
        for names in choices:
            chosen = [name for name in names if row[name] is not None]
            if len(chosen) > 1:
                raise ValueRefused(
                    f"it and {chosen[0]} are members of one oneof: one of them is null", chosen[1]
                )
        for name, may_be_null, write in parts:
            value = row[name]
            try:
                if value is not None:
                    write(message, value)
                elif not may_be_null:
                    raise ValueRefused("it is null, and the field cannot be absent")
            except ValueRefused as refused:
                raise refused.inside(name) from None

    return fill


def _field_writer(member: Any, kind: pa.DataType) -> Callable[[Any, Any], None]:
    """Return a function that sets one field of a message to a value that is not null."""
    name = member.name
    if _is_map(member):
        return _map_writer(member, kind)
    if member.is_repeated:
        return _list_writer(member, kind)
    if member.message_type is not None:
        fill = _filler(member, kind)

        def write_message(message: Any, value: Any) -> None:
            part = getattr(message, name)
            part.SetInParent()
            fill(part, value)

        return write_message
    convert = _conversions(member, kind)[1]

    def write_scalar(message: Any, value: Any) -> None:
        try:
            setattr(message, name, convert(value))
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, ValueRefused) else ValueRefused(str(error)) from None

    return write_scalar


def _list_writer(member: Any, kind: pa.DataType) -> Callable[[Any, Any], None]:
    if not is_list(kind):
        raise ValueRefused(f"the message has an array, not {kind}")
    fill, convert = _item_writer(member, kind.value_type)

    def write_list(message: Any, items: list[Any]) -> None:
        container = getattr(message, member.name)
        for number, item in enumerate(items):
            _put(item, f"[{number}]", container.add if fill else container.append, fill, convert)

    return write_list


def _map_writer(member: Any, kind: pa.DataType) -> Callable[[Any, Any], None]:
    _check_map(kind)
    key, value = _map_parts(member)
    convert_key = _conversions(key, kind.key_type)[1]
    fill, convert = _item_writer(value, kind.item_type)

    def write_map(message: Any, entries: list[tuple[Any, Any]]) -> None:
        container = getattr(message, member.name)
        for name, item in entries:
            key = convert_key(name)
            put = partial(container.__getitem__ if fill else container.__setitem__, key)
            _put(item, f"[{name}]", put, fill, convert)

    return write_map


def _item_writer(member: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Return the function that fills a message, or the one that converts a scalar; the other is None."""
    if member.message_type is not None:
        return _filler(member, kind), None
    return None, _conversions(member, kind)[1]


def _put(item: Any, path: str, put: Callable[..., Any], fill: Any, convert: Any) -> None:
    """Put a value into an array or map: fill the message that `put` returns, or put a scalar."""
    try:
        if item is None:
            raise ValueRefused("it is null, and Protobuf has no null there")
        if fill is not None:
            fill(put(), item)
        else:
            put(convert(item))
    except (TypeError, ValueError) as error:
        refused = error if isinstance(error, ValueRefused) else ValueRefused(str(error))
        raise refused.inside(path) from None


def _filler(member: Any, kind: pa.DataType) -> Callable[[Any, Any], None]:
    own = member.message_type.full_name
    if own in (TIMESTAMP, DURATION):
        _check(_item_type(member, ()), kind)
        if own == TIMESTAMP:
            return lambda message, value: message.FromDatetime(value)
        return lambda message, value: message.FromTimedelta(value)
    return writer_of(member.message_type, kind)
