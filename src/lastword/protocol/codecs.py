"""Readers and writers of Kafka's messages, compiled for one version at first use.

`codec(name, version)` generates one Python function that reads and one that writes. Each has no inner calls:
neighbouring fields of fixed size are one `struct`, and nested structs are loops in place. A field that
a version does not have keeps its default when it is read. A message with `records` is read from a memoryview,
and its records are slices of that view; it is written as a list of parts, in which buffers and file ranges
stay as they are.

No reader allocates memory for an announced length: a length must fit into the bytes that are there, and all
arrays of a message together have at most `MOST_ELEMENTS` elements. The generated code has no bookkeeping for
errors: the line that fails names the field, and the local variable `p` the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

from lastword.errors import MalformedMessageError, UnencodableMessageError, UnsupportedVersionError
from lastword.protocol.schemas import (
    FIXED,
    ZERO_UUID,
    Field,
    Message,
    Schema,
    class_name,
    message_class,
    schema_of,
    within,
)

MOST_ELEMENTS = 1_000_000
"""Upper bound for the elements of all arrays of one message together."""
ERROR_CHARACTERS = 8191
"""Most characters of an error message, which may repeat strings of the request: a string has 32767 bytes."""

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(eq=False, slots=True)
class FileRange:
    """Bytes of a file that are to be sent as they are, for `os.sendfile`.

    Attributes:
        file: A descriptor, or an object that the sender can use as a descriptor.
        position: The first byte.
        length: The number of bytes.
    """

    file: Any
    position: int
    length: int

    def __len__(self) -> int:
        return self.length


Part: TypeAlias = Buffer | FileRange


class MessageCodec:
    """The reader and the writer of one message in one version.

    Attributes:
        name: Kafka's name of the message, e.g. "FetchResponse".
        version: The version.
        type: The class of the message.
        has_records: Whether the version has a field of record batches.
    """

    __slots__ = (
        "_decode",
        "_encode",
        "_read_labels",
        "_write_labels",
        "has_records",
        "name",
        "type",
        "version",
    )

    def __init__(self, name: str, version: int) -> None:
        schema = schema_of(name)
        if not within(schema.versions, version):
            first, last = schema.versions
            raise UnsupportedVersionError(
                f"{name} has no version {version}", remedy=f"use one of the versions {first} to {last}"
            )
        self.name = name
        self.version = version
        self.type = message_class(name)
        self.has_records = _has_records(schema.fields, version)
        reader = _ReaderCode(schema, version, self.has_records)
        writer = _WriterCode(schema, version, self.has_records)
        self._decode, self._read_labels = reader.compiled("decode", f"<{name} v{version} reader>")
        self._encode, self._write_labels = writer.compiled("encode", f"<{name} v{version} writer>")

    def decode(self, data: Buffer, position: int = 0, *, whole: bool = True) -> Any:
        """Return the message of `data` from `position` to the end.

        `records` of the result are slices of `data`, which must not change while they are used.

        Args:
            data: The bytes.
            position: The first byte of the message.
            whole: False: bytes behind the message are ignored.

        Raises:
            MalformedMessageError: The bytes are not this message; has the position and names the field.
        """
        if self.has_records:
            if not isinstance(data, memoryview):
                data = memoryview(data)
        elif type(data) is not bytes:
            data = bytes(data)
        try:
            return self._decode(data, position, len(data), whole)
        except READ_FAULTS as fault:
            self._raise_malformed(fault, data)

    def encode(self, message: Message) -> bytes:
        """Return the bytes of a message, whose records must be in memory.

        Raises:
            UnsupportedVersionError: A field that this version does not have would be lost.
            UnencodableMessageError: A field has a value of another type, or one that is too large.
        """
        parts = self.encode_parts(message)
        try:
            return b"".join(parts)  # type: ignore[arg-type]
        except TypeError:
            raise UnencodableMessageError(
                f"{self.name} v{self.version}: records are in a file", remedy="use encode_parts"
            ) from None

    def encode_parts(self, message: Message) -> list[Part]:
        """Return the message as parts that follow each other; records are the objects that the message has.

        Raises:
            UnsupportedVersionError: A field that this version does not have would be lost.
            UnencodableMessageError: A field has a value of another type, or one that is too large.
        """
        try:
            parts: list[Part] = self._encode(message)
        except UnsupportedVersionError:
            raise
        except _WRITE_FAULTS as fault:
            label, _ = _place(fault, self._write_labels)
            raise UnencodableMessageError(
                f"{self.name} v{self.version}: {label}: {fault}", remedy="give a value of the field's type"
            ) from fault
        return parts

    def _raise_malformed(self, fault: Exception, data: Buffer) -> NoReturn:
        label, variables = _place(fault, self._read_labels)
        position = variables.get("p", 0)
        reason = str(fault) if isinstance(fault, _Malformed) else "the bytes end too early"
        if isinstance(fault, UnicodeDecodeError):
            reason = "a string is not UTF-8"
        raise MalformedMessageError(
            f"{self.name} v{self.version}: {label}: {reason}, at byte {position} of {len(data)}",
            remedy="close the connection; the peer does not speak this version of Kafka's protocol",
            position=position,
        ) from None


@cache
def codec(name: str, version: int) -> MessageCodec:
    """Return the codec of a message in one version; the first call compiles it.

    Args:
        name: Kafka's name, e.g. "MetadataRequest" or "OffsetCommitValue".
        version: The version.

    Raises:
        UnsupportedVersionError: These schemas do not have this message or version.
    """
    return MessageCodec(name, version)


def java_hash(text: str) -> int:
    """Return the absolute value of Java's hash of a text, 0 for its smallest number: `Utils.abs`.

    Modulo the number of partitions, it is the partition of a group or of a transactional id.
    """
    data = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(data), 2):
        code = (code * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return code if code < 0x80000000 else (0x100000000 - code) & 0x7FFFFFFF


def encode_stored(message: Message, version: int = 0) -> bytes:
    """Return a coordinator's key or value, or a consumer's metadata: two bytes, then the message.

    The two bytes are the type of the record in a key, and otherwise the version.
    """
    name = type(message).__name__
    prefix = schema_of(name).key if name.endswith("Key") else version
    return struct.pack(">h", prefix) + codec(name, version).encode(message)


def decode_stored(name: str, data: Buffer) -> Any:
    """Return the message of bytes that `encode_stored` writes. Bytes behind it are ignored, as by Kafka.

    Args:
        name: Kafka's name, e.g. "OffsetCommitValue". The first two bytes of a key are its record type.
        data: The bytes.

    Raises:
        MalformedMessageError: The bytes are not this message.
        UnsupportedVersionError: The version is newer than these schemas.
    """
    if len(data) < 2:
        raise MalformedMessageError(
            f"{name}: {len(data)} bytes", remedy="another program wrote this record", position=0
        )
    (prefix,) = struct.unpack_from(">h", data)
    if not name.endswith("Key"):
        return codec(name, prefix).decode(data, 2, whole=False)
    if prefix != schema_of(name).key:
        raise MalformedMessageError(
            f"{name}: a key of record type {prefix}, not {schema_of(name).key}",
            remedy="choose the message by the first two bytes of the key",
            position=0,
        )
    return codec(name, 0).decode(data, 2, whole=False)


def _has_records(fields: list[Field], version: int) -> bool:
    return any(
        field.kind == "records" or _has_records(field.fields, version)
        for field in fields
        if within(field.versions, version)
    )


# ---------------------------------------------------------------- faults


class _Malformed(Exception):
    """A fault that a reader states in words."""


READ_FAULTS = (_Malformed, IndexError, struct.error, UnicodeDecodeError)
_WRITE_FAULTS = (struct.error, TypeError, AttributeError, UnicodeEncodeError, ValueError, IndexError)


def _place(fault: Exception, labels: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the field that the failed line of generated code reads or writes, and the variables there."""
    trace: TracebackType | None = fault.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<"):
            line = trace.tb_lineno - 1
            return labels[line] if line < len(labels) else "", trace.tb_frame.f_locals
        trace = trace.tb_next
    return "", {}


def read_uvarint(data: Buffer, p: int) -> tuple[int, int]:
    """Return the unsigned varint at `p` and the position behind it."""
    result = shift = 0
    while True:
        byte = data[p]
        p += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise _Malformed("a varint of more than 5 bytes")
    if result > 0xFFFFFFFF:
        raise _Malformed("a varint above 32 bits")
    return result, p


def skip_tags(data: Buffer, p: int, end: int) -> int:
    """Return the position behind tagged fields that none of our schemas has: those of a newer Kafka."""
    count, p = read_uvarint(data, p)
    for _ in range(count):
        _, p = read_uvarint(data, p)
        size, p = read_uvarint(data, p)
        if size > end - p:
            _bad_length(size, end - p)
        p += size
    return p


def _bad_length(length: int, left: int) -> NoReturn:
    raise _Malformed(
        "null, where a value must be" if length == -1 else f"length {length} with {left} bytes left"
    )


def _bad_count(count: int, left: int, allowance: int) -> NoReturn:
    if count >= 0 and allowance < 0:
        raise _Malformed(f"more than {MOST_ELEMENTS} elements in the arrays of one message")
    raise _Malformed(
        "null, where an array must be" if count == -1 else f"{count} elements with {left} bytes left"
    )


def _bad_rest(position: int, end: int) -> NoReturn:
    raise _Malformed(f"{end - position} bytes follow its end" if position < end else "longer than its size")


def _write_uvarint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _write_string_length(number: int) -> bytes:
    if number > 32768:
        raise ValueError(f"a string of {number - 1} bytes; 32767 at most")
    return _write_uvarint(number)


def _bad_uuid(value: Any) -> NoReturn:
    raise ValueError(f"an id is 16 bytes, not {value!r}")


def _records_of(value: Any) -> tuple[int, Iterable[Part]]:
    """Return the number of bytes and the parts of a `records` field."""
    if isinstance(value, (bytes, bytearray, memoryview, FileRange)):
        return len(value), (value,)
    return sum(map(len, value)), value


# ---------------------------------------------------------------- generated code


class _Code:
    """Lines of generated code, each with the name of the field that it handles."""

    def __init__(self, schema: Schema, version: int, has_records: bool) -> None:
        self.version = version
        self.flexible = within(schema.flexible, version)
        self.has_records = has_records
        self.schema = schema
        self.lines: list[str] = []
        self.labels: list[str] = []
        self.label = ""
        self.indent = 1
        self.group: list[tuple[str, str]] = []
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "uvarint": read_uvarint,
            "skip_tags": skip_tags,
            "bad_length": _bad_length,
            "bad_count": _bad_count,
            "bad_rest": _bad_rest,
            "bad_uuid": _bad_uuid,
            "write_uvarint": _write_uvarint,
            "write_string_length": _write_string_length,
            "unsupported": self._unsupported,
            "records_of": _records_of,
            "ONE": [bytes([number]) for number in range(128)],
            "ZERO_UUID": ZERO_UUID,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
        }
        for name, (_, kind) in schema.structs.items():
            self.names[f"C_{name}"] = kind

    def compiled(self, function: str, file: str) -> tuple[Any, list[str]]:
        """Return the function, and the label of each line."""
        exec(compile("\n".join(self.lines), file, "exec"), self.names)
        return self.names[function], self.labels

    def emit(self, *lines: str) -> None:
        """Add lines at the current depth."""
        for line in lines:
            self.lines.append(" " * self.indent + line)
            self.labels.append(self.label)

    def fields(self, fields: list[Field]) -> Iterator[Field]:
        """Yield the fields that this version has in their places, in order."""
        for field in fields:
            if self.has(field) and not self.is_tagged(field):
                yield field

    def tagged(self, fields: list[Field]) -> list[Field]:
        """Return the fields that this version has as tagged fields, by tag."""
        return sorted((f for f in fields if self.has(f) and self.is_tagged(f)), key=lambda field: field.tag)

    def has(self, field: Field) -> bool:
        return within(field.versions, self.version)

    def is_tagged(self, field: Field) -> bool:
        return within(field.tagged, self.version)

    def is_nullable(self, field: Field) -> bool:
        return within(field.nullable, self.version)

    def is_compact(self, field: Field) -> bool:
        return self.flexible and field.flexible

    def least_size(self, field: Field) -> int:
        """Return the least number of bytes of an element of an array."""
        if field.struct is not None:
            inner = sum(
                1 if inner.is_array or inner.kind not in FIXED else struct.calcsize(f">{FIXED[inner.kind]}")
                for inner in self.fields(field.fields)
            )
            return max(1, inner + self.flexible)
        return struct.calcsize(f">{FIXED[field.kind]}") if field.kind in FIXED else 1

    def struct(self, letters: str, method: str) -> str:
        """Return the name of the method of a compiled struct."""
        name = f"{method}_{letters.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(f">{letters}"), method)
        return name

    def _unsupported(self, field: str) -> NoReturn:
        raise UnsupportedVersionError(
            f"{self.schema.name} v{self.version} has no field {field}, and its value must not be lost",
            remedy="leave the field at its default, or use a newer version",
        )


class _ReaderCode(_Code):
    """The source of a reader: `decode(data, p, end, whole)`."""

    def __init__(self, schema: Schema, version: int, has_records: bool) -> None:
        super().__init__(schema, version, has_records)
        self.lines.append("def decode(data, p, end, whole):")
        self.labels.append("")
        self.emit(f"left = {MOST_ELEMENTS}", f"o1 = new(C_{schema.name})")
        self.body(schema.fields, 1, "")
        self.label = "the message"
        self.emit("if p != end and (whole or p > end): bad_rest(p, end)", "return o1")

    def body(self, fields: list[Field], depth: int, path: str) -> None:
        """Read the fields of a struct into `o{depth}`."""
        for field in fields:
            if not self.has(field) or self.is_tagged(field):
                self.emit(f"o{depth}.{field.name} = {field.default}")
        for field in self.fields(fields):
            self.field(field, f"o{depth}.{field.name}", depth, f"{path}{field.kafka_name}")
        self.flush()
        if self.flexible:
            self.tags(self.tagged(fields), depth, path)

    def tags(self, fields: list[Field], depth: int, path: str) -> None:
        """Read tagged fields; those without a field here are of a newer Kafka, and are skipped."""
        count, stop = f"t{depth}", f"s{depth}"
        self.label = f"{path}tagged fields"
        if not fields:
            self.emit("if data[p]: p = skip_tags(data, p, end)", "else: p += 1")
            return
        self.emit(f"{count} = data[p]; p += 1", f"if {count}:")
        self.indent += 1
        self.emit(f"if {count} > 127: {count}, p = uvarint(data, p - 1)", f"for _ in range({count}):")
        self.indent += 1
        self.emit("n, p = uvarint(data, p)", f"{stop}, p = uvarint(data, p)")
        self.emit(f"if {stop} > end - p: bad_length({stop}, end - p)", f"{stop} += p")
        word = "if"
        for field in fields:
            self.label = path + field.kafka_name
            self.emit(f"{word} n == {field.tag}:")
            self.indent += 1
            self.field(field, f"o{depth}.{field.name}", depth, self.label)
            self.flush()
            self.label = path + field.kafka_name
            self.emit(f"if p != {stop}: bad_rest(p, {stop})")
            self.indent -= 1
            word = "elif"
        self.label = f"{path}tagged fields"
        self.emit(f"else: p = {stop}")
        self.indent -= 2

    def field(self, field: Field, target: str, depth: int, path: str) -> None:
        """Read one field into `target`."""
        if not field.is_array and field.kind in FIXED:
            self.group.append((target, FIXED[field.kind]))
            self.label = path
            return
        nullable = self.is_nullable(field)
        if not field.is_array and field.struct is not None:
            self.flush()
            self.label = path
            if nullable:
                null = "== 0" if self.is_tagged(field) else "> 127"  # Kafka's two ways to write null
                self.emit("p += 1", f"if data[p - 1] {null}: {target} = None", "else:")
                self.indent += 1
            self.emit(f"o{depth + 1} = new({class_name(field.struct)})")
            self.body(field.fields, depth + 1, f"{path}.")
            self.emit(f"{target} = o{depth + 1}")
            self.indent -= nullable
            return
        string = field.kind == "string" and not field.is_array
        self.length("h" if string else "i", self.is_compact(field))
        self.label = path
        if nullable:
            self.emit(f"if n == -1: {target} = None", "else:")
            self.indent += 1
        if field.is_array:
            self.array(field, target, depth, path)
        else:
            self.piece(field.kind, target, string)
        self.indent -= nullable

    def length(self, letter: str, compact: bool) -> None:
        """Read a length into `n`; -1 is null."""
        if compact:
            self.flush()
            self.emit("n = data[p] - 1; p += 1", "if n > 126: n, p = uvarint(data, p - 1); n -= 1")
        else:
            self.group.append(("n", letter))
            self.flush()

    def piece(self, kind: str, target: str, string: bool) -> None:
        """Read `n` bytes as a string, bytes or records."""
        self.emit("q = p + n")
        limit = " or n > 32767" if string else ""
        self.emit(f"if n < 0 or q > end{limit}: bad_length(n, end - p)")
        if string:
            value = 'str(data[p:q], "utf-8")' if self.has_records else "data[p:q].decode()"
        elif kind == "bytes":
            value = "bytes(data[p:q])" if self.has_records else "data[p:q]"
        else:
            value = "data[p:q]"
        self.emit(f"{target} = {value}; p = q")

    def array(self, field: Field, target: str, depth: int, path: str) -> None:
        """Read `n` elements."""
        least = self.least_size(field)
        size = "n" if least == 1 else f"n * {least}"
        self.emit("left -= n", f"if n < 0 or left < 0 or {size} > end - p: bad_count(n, end - p, left)")
        if field.kind == "uuid":
            self.emit(f"q = p + 16 * n; {target} = [bytes(data[i:i + 16]) for i in range(p, q, 16)]; p = q")
        elif field.kind in FIXED:
            self.emit(f'{target} = list(unpack_from(f">{{n}}{FIXED[field.kind]}", data, p)); p += {size}')
        else:
            self.emit(f"a{depth} = []", "for _ in range(n):")
            self.indent += 1
            if field.struct is not None:
                self.emit(f"o{depth + 1} = new({class_name(field.struct)})")
                self.body(field.fields, depth + 1, f"{path}.")
                self.emit(f"a{depth}.append(o{depth + 1})")
            else:
                self.length("h" if field.kind == "string" else "i", self.is_compact(field))
                self.piece(field.kind, "v", field.kind == "string")
                self.emit(f"a{depth}.append(v)")
            self.indent -= 1
            self.label = path
            self.emit(f"{target} = a{depth}")

    def flush(self) -> None:
        """Read the fields of fixed size that are waiting, together."""
        if self.group:
            letters = "".join(letter for _, letter in self.group)
            targets = ", ".join(target for target, _ in self.group)
            method = self.struct(letters, "unpack_from")
            self.emit(f"{targets}, = {method}(data, p); p += {struct.calcsize(f'>{letters}')}")
            self.group.clear()


class _WriterCode(_Code):
    """The source of a writer: `encode(o1)`, which returns parts."""

    def __init__(self, schema: Schema, version: int, has_records: bool) -> None:
        super().__init__(schema, version, has_records)
        self.lines.append("def encode(o1):")
        self.labels.append("")
        self.write = "w"
        self.emit("out = []; w = out.append", *(["parts = []"] if has_records else []))
        self.body(schema.fields, "o1", 1, "")
        self.flush()
        if has_records:
            self.emit('if out: parts.append(b"".join(out))', "return parts")
        else:
            self.emit('return [b"".join(out)]')

    def body(self, fields: list[Field], source: str, depth: int, path: str) -> None:
        """Write the fields of the struct `source`."""
        for field in fields:
            if not self.has(field) and not field.ignorable:
                self.label = path + field.kafka_name
                self.emit(f"if {field.differs(f'{source}.{field.name}')}: unsupported({self.label!r})")
        for field in self.fields(fields):
            self.field(field, f"{source}.{field.name}", depth, f"{path}{field.kafka_name}")
        if self.flexible:
            tagged = self.tagged(fields)
            if tagged:
                self.tags(tagged, source, depth, path)
            else:
                self.group.append(("0", "B"))

    def tags(self, fields: list[Field], source: str, depth: int, path: str) -> None:
        """Write the tagged fields that differ from their defaults."""
        self.flush()
        self.emit(f"t{depth} = []")
        outer, inner = self.write, f"w{depth}"
        for field in fields:
            self.label = path + field.kafka_name
            value = f"{source}.{field.name}"
            self.emit(f"if {field.differs(value)}:")
            self.indent += 1
            self.emit(f"b{depth} = []; {inner} = b{depth}.append")
            self.write = inner
            self.field(field, value, depth, self.label)
            self.flush()
            self.write = outer
            self.emit(f'e = b"".join(b{depth})')
            self.emit(f"t{depth}.append({_write_uvarint(field.tag)!r} + write_uvarint(len(e)) + e)")
            self.indent -= 1
        self.emit(f"{outer}(ONE[len(t{depth})])", f"for e in t{depth}: {outer}(e)")

    def field(self, field: Field, value: str, depth: int, path: str) -> None:
        """Write one field."""
        self.label = path
        if not field.is_array and field.kind in FIXED:
            if field.kind == "uuid":
                self.emit(f"if len({value}) != 16: bad_uuid({value})")
            self.group.append((value, FIXED[field.kind]))
            return
        nullable = self.is_nullable(field)
        if not field.is_array and field.struct is not None:
            if nullable:
                self.flush()
                null = b"\0" if self.is_tagged(field) else b"\xff"
                self.emit(f"if {value} is None: {self.write}({null!r})", "else:")
                self.indent += 1
                self.group.append(("1", "b"))
            self.body(field.fields, value, depth + 1, f"{path}.")
            if nullable:
                self.flush()
                self.indent -= 1
            return
        variable = f"v{depth}"
        self.emit(f"{variable} = {value}")
        if field.is_array:
            measured, empty = f"n = len({variable})", f"{variable} = ()"
        elif field.kind == "string":
            cut = f"[:{ERROR_CHARACTERS}]" if field.name.endswith("error_message") else ""
            measured, empty = f"e = {variable}{cut}.encode(); n = len(e)", 'e = b""'
        elif field.kind == "bytes":
            measured, empty = f"e = {variable}; n = len(e)", 'e = b""'
        else:
            measured, empty = f"n, e = records_of({variable})", "e = ()"
        if nullable:
            self.emit(f"if {variable} is None: n = -1; {empty}", f"else: {measured}")
        else:
            self.emit(measured)
        string = field.kind == "string" and not field.is_array
        self.length("h" if string else "i", self.is_compact(field), string)
        if field.is_array:
            self.array(field, variable, depth, path)
        elif field.kind == "records":
            self.emit('parts.append(b"".join(out)); out.clear(); parts.extend(e)')
        else:
            self.emit(f"{self.write}(e)")

    def length(self, letter: str, compact: bool, string: bool) -> None:
        """Write `n`, after the fields of fixed size that are waiting."""
        if not compact:
            self.group.append(("n", letter))
            self.flush()
            return
        slow = "write_string_length" if string else "write_uvarint"
        waiting = list(self.group)
        if waiting:
            self.emit("if n < 127:")
            self.indent += 1
            self.group.append(("n + 1", "B"))
            self.flush()
            self.indent -= 1
            self.emit("else:")
            self.indent += 1
            self.group = waiting
            self.flush()
            self.emit(f"{self.write}({slow}(n + 1))")
            self.indent -= 1
        else:
            self.emit(f"{self.write}(ONE[n + 1] if n < 127 else {slow}(n + 1))")

    def array(self, field: Field, variable: str, depth: int, path: str) -> None:
        """Write the elements of an array."""
        if field.kind == "uuid":
            self.emit(f"for e in {variable}:", " if len(e) != 16: bad_uuid(e)", f" {self.write}(e)")
        elif field.kind in FIXED:
            self.emit(f'if n > 0: {self.write}(pack(f">{{n}}{FIXED[field.kind]}", *{variable}))')
        else:
            element = f"o{depth + 1}"
            self.emit(f"for {element} in {variable}:")
            self.indent += 1
            if field.struct is not None:
                self.body(field.fields, element, depth + 1, f"{path}.")
            else:
                self.emit(
                    f"e = {element}.encode(); n = len(e)"
                    if field.kind == "string"
                    else f"e = {element}; n = len(e)"
                )
                string = field.kind == "string"
                self.length("h" if string else "i", self.is_compact(field), string)
                self.emit(f"{self.write}(e)")
            self.flush()
            self.indent -= 1

    def flush(self) -> None:
        """Write the fields of fixed size that are waiting, together."""
        if self.group:
            letters = "".join(letter for _, letter in self.group)
            if all(value.isdigit() for value, _ in self.group):
                constant = struct.pack(f">{letters}", *(int(value) for value, _ in self.group))
                self.emit(f"{self.write}({constant!r})")
            else:
                values = ", ".join(value for value, _ in self.group)
                self.emit(f"{self.write}({self.struct(letters, 'pack')}({values}))")
            self.group.clear()
