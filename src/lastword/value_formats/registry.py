"""Values of a schema registry: a byte 0, four bytes with the id of a schema, and a value of the schema.

The value is an Avro datum, JSON text, or a Protobuf message. In front of a message are the indexes of its
type in the file of the schema, as zigzag varints: how many there are, then the index of the outermost message
and of each nested one. A single 0 stands for the first message.

The schemas are on a server (`schema.registry.url` of http or https) or in a folder, as `<id>.avsc`,
`<id>.json`, or `<id>.desc` (a descriptor file, in which the file of the schema is the last). The requests
to a server are plain HTTP: the schema of an id, the latest schema of a subject, the id of a schema to
write. A process requests each id once. A server translates a Protobuf schema to a descriptor
(`format=serialized`).

Reading. Each record is read with the schema of its own id. The schema of the column is `avroSchema`,
`descFilePath` and `messageName`, else the latest of the subject. Avro records of other ids are resolved to
it, with its defaults; messages are read as the message of the column, by field numbers. Without a schema of
the column, and for records of another kind, fields are matched by name, and fields that a record's schema
lacks are null.

Writing. The schema is that of the options, else the latest of the subject, which the column must fit, or, for
a new subject, the Avro schema that the type has. A server registers it; the driver does that once for each
write, never a task.
JSON is written under the latest schema of the subject. Values are not checked against a JSON schema.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.errors import RegistryError
from lastword.value_formats.avro import AvroFormat, Types, decoder_of, json_of, parse_schema, schema_of
from lastword.value_formats.interface import ValueFormat, ValueRefused
from lastword.value_formats.json_text import JsonFormat, problem_of
from lastword.value_formats.protobuf import ProtobufFormat, descriptors_of, file_of, files_of, messages_of

TIMEOUT_SECONDS = 30
HEADER_BYTES = 5

Datum = AvroFormat | JsonFormat | ProtobufFormat
"""The format of the values of a schema. The descriptors of a message end with its own file."""

IN_EVERY_REGISTRY = ("google/protobuf/", "google/type/", "confluent/")
"""Folders of Protobuf files that a schema imports without a reference."""

REFERENCE = {"name": str, "subject": str, "version": int}
"""Fields of a reference to another schema."""

FILE_OF_SCHEMA = "schema"
"""The name of the file of a Protobuf schema. Files that it imports have the names of the imports."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry: the URL of a server or a folder, and `user:password` for a server."""

    place: str
    user: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, place: str, user: str | None) -> Registry:
        """Return a registry. The URL may have user and password, as for Confluent's clients.

        No text shows them. `user` has priority.
        """
        scheme, mark, rest = place.partition("://")
        authority, slash, path = rest.partition("/")
        given, at, host = authority.rpartition("@")
        if not (mark and at):
            return cls(place, user)
        return cls(f"{scheme}://{host}{slash}{path}", user or urllib.parse.unquote(given))

    @property
    def is_server(self) -> bool:
        """Return whether the registry is a server."""
        return self.place.lower().startswith(("http://", "https://"))

    def by_id(self, number: int) -> Datum:
        """Return the format of a schema's values. ValueRefused: there is no such schema of its kind."""
        if self.is_server:
            answer = self._ask(f"/schemas/ids/{number}", schema=str)
            if answer is None:
                raise ValueRefused(f"its schema id {number} is not in the registry {self.place}")
            return self._format_of(number, answer)
        file = Path(self.place) / str(number)
        if (text := file.with_suffix(".avsc")).is_file():
            return AvroFormat(text.read_text(encoding="utf-8"))
        if (descriptors := file.with_suffix(".desc")).is_file():
            try:
                files = {part.name: part for part in files_of(descriptors.read_bytes())}
            except ValueError as error:
                raise ValueRefused(f"its schema {descriptors} {error}") from None
            return _first_message(number, next(reversed(files), ""), files)
        if file.with_suffix(".json").is_file():
            return JsonFormat()
        raise ValueRefused(f"its schema id {number} is not in {self.place}")

    def latest(self, subject: str) -> tuple[int, Datum] | None:
        """Return the id of the latest schema of a subject, and the format of its values.

        None if there is no such subject; a folder has no subjects.

        Raises:
            RegistryError: The schema cannot be read.
        """
        path = f"/subjects/{_quoted(subject)}/versions/latest"
        answer = self._ask(path, id=int, schema=str) if self.is_server else None
        if answer is None:
            return None
        try:
            return int(answer["id"]), self._format_of(int(answer["id"]), answer)
        except ValueRefused as refused:
            raise RegistryError(
                f"the latest schema of {subject} cannot be read: {refused}",
                remedy="give avroSchema, or descFilePath and messageName, or another subject",
            ) from None

    def register(self, subject: str, datum: AvroFormat | ProtobufFormat) -> int:
        """Return the id of a schema, which a server registers for the subject.

        Raises:
            RegistryError: The server refuses the schema, or no file of the folder has it.
        """
        if not self.is_server:
            return self._file_with(subject, datum)
        if isinstance(datum, ProtobufFormat):
            files = {file.name: file for file in files_of(datum.descriptors)}
            schema = self._with_references([*files][-1], files)
        else:
            schema = {"schema": datum.schema}
        return int(self._post(f"/subjects/{_quoted(subject)}/versions", schema, id=int)["id"])

    def _file_with(self, subject: str, datum: AvroFormat | ProtobufFormat) -> int:
        """Return the number of the file that has a schema."""
        ending = ".avsc" if isinstance(datum, AvroFormat) else ".desc"
        numbers = sorted(int(file.stem) for file in Path(self.place).iterdir() if file.stem.isdecimal())
        for number in reversed(numbers):
            if (Path(self.place) / f"{number}{ending}").is_file():
                with suppress(ValueRefused):  # a file that cannot be read is another schema
                    if _same(self.by_id(number), datum):
                        return number
        unused = Path(self.place) / f"{numbers[-1] + 1 if numbers else 1}{ending}"
        if isinstance(datum, AvroFormat):
            remedy = f"write this to {unused}: {datum.schema}"
        else:
            proto = files_of(datum.descriptors)[-1].name
            remedy = f"protoc --include_imports --descriptor_set_out={unused} {proto}"
        raise RegistryError(f"no file of {self.place} has the schema of {subject}", remedy=remedy)

    def _with_references(self, name: str, files: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a file to register, after the files that it imports are registered.

        The subject of an imported file is its name, as for Confluent's serializers.
        """
        references = []
        for imported in files[name].dependency:
            if not imported.startswith(IN_EVERY_REGISTRY):
                path = f"/subjects/{_quoted(imported)}"
                schema = self._with_references(imported, files)
                self._post(f"{path}/versions", schema, id=int)
                version = self._post(path, schema, version=int)["version"]
                references.append({"name": imported, "subject": imported, "version": version})
        text = base64.b64encode(files[name].SerializeToString(deterministic=True)).decode()
        return {"schema": text, "schemaType": "PROTOBUF", "references": references}

    def _format_of(self, number: int, answer: dict[str, Any]) -> Datum:
        """Return the format of the values of a schema in an answer."""
        kind = answer.get("schemaType", "AVRO")
        if kind == "AVRO":
            return AvroFormat(self._whole(answer))
        if kind == "JSON":
            return JsonFormat()
        if kind != "PROTOBUF":
            raise ValueRefused(f"its schema id {number} is of type {kind}; AVRO, JSON and PROTOBUF are read")
        files: dict[str, Any] = {}
        self._add_files(number, FILE_OF_SCHEMA, files)
        return _first_message(number, FILE_OF_SCHEMA, files)

    def _add_files(self, number: int, name: str, files: dict[str, Any]) -> None:
        """Add the file of a schema id under the name by which others import it, and the files it imports."""
        answer = self._ask(f"/schemas/ids/{number}?format=serialized", schema=str)
        try:
            if answer is None:
                raise ValueError
            files[name] = file_of(base64.b64decode(answer["schema"], validate=True))
        except ValueError:
            raise ValueRefused(
                f"the registry {self.place} gives no descriptor of its schema id {number} "
                f"(format=serialized): write the schemas to a folder, with protoc "
                f"--include_imports --descriptor_set_out={number}.desc"
            ) from None
        files[name].name = name
        for reference in answer.get("references") or ():
            if reference["name"] not in files:
                self._add_files(int(self._referred(reference)["id"]), reference["name"], files)

    def _whole(self, answer: dict[str, Any]) -> str:
        """Return the schema of an answer, with the schemas that it refers to in it."""
        text = str(answer["schema"])
        if not answer.get("references"):
            return text
        named: dict[str, Any] = {}
        self._refer(answer, named)
        return json.dumps(_inlined(json.loads(text), named))

    def _refer(self, answer: dict[str, Any], named: dict[str, Any]) -> None:
        for reference in answer.get("references") or ():
            other = self._referred(reference)
            named[reference["name"]] = json.loads(other["schema"])
            self._refer(other, named)

    def _referred(self, reference: dict[str, Any]) -> dict[str, Any]:
        """Return the answer for the schema of a reference."""
        path = f"/subjects/{_quoted(reference['subject'])}/versions/{reference['version']}"
        answer = self._ask(path, id=int, schema=str)
        if answer is None:
            raise ValueRefused(f"its schema refers to {reference['subject']}, which is not in the registry")
        return answer

    def _post(self, path: str, body: dict[str, Any], **fields: type) -> dict[str, Any]:
        """Return the answer to a request that a registry always has. RegistryError if it is not there."""
        answer = self._ask(path, body, **fields)
        if answer is None:
            raise RegistryError(
                f"the registry {self.place} has no {path}", remedy="correct schema.registry.url"
            )
        return answer

    def _ask(self, path: str, body: dict[str, Any] | None = None, **fields: type) -> dict[str, Any] | None:
        """Return the JSON of an answer, which has fields of these types; None for status 404.

        RegistryError for every other failure.
        """
        url = self.place.rstrip("/") + path
        kind = "application/vnd.schemaregistry.v1+json"
        headers = {"Accept": f"{kind}, application/json", "Content-Type": kind}
        if self.user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(self.user.encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                result: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode("utf-8", "replace")
            if error.code == 404:
                return None
            remedy = "try again"
            if error.code in (401, 403):
                remedy = "give secret.basic.auth.user.info=user:password"
            elif error.code in (409, 422):
                remedy = "give a schema that is compatible with the subject, or another subject"
            elif error.code == 501:
                remedy = "give schema.registry.url as a folder with descriptor files <id>.desc"
            raise RegistryError(f"{url} answers {error.code}: {text.strip()}", remedy=remedy) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryError(
                f"{url} does not answer: {reason}", remedy="check schema.registry.url, and try again"
            ) from None
        if _has(result, fields) and all(_has(each, REFERENCE) for each in result.get("references") or ()):
            return result
        raise RegistryError(
            f"the answer of {url} is not of a schema registry", remedy="correct schema.registry.url"
        )


@lru_cache(maxsize=1024)
def format_by_id(registry: Registry, number: int) -> Datum:
    """Return the format of a schema's values, which never changes; requested once in a process."""
    return registry.by_id(number)


def _first_message(number: int, name: str, files: dict[str, Any]) -> ProtobufFormat:
    """Return the format of the first message of a file. ValueRefused if it has none."""
    messages = messages_of(files[name]) if name in files else {}
    if not messages:
        raise ValueRefused(f"its schema id {number} has no message")
    return ProtobufFormat(descriptors_of(name, files), next(iter(messages)))


def _same(datum: Datum, other: Datum) -> bool:
    """Return whether two formats are of one schema."""
    if isinstance(datum, AvroFormat) and isinstance(other, AvroFormat):
        return bool(json_of(datum.schema or "null") == json_of(other.schema or "null"))
    assert isinstance(datum, ProtobufFormat) and isinstance(other, ProtobufFormat)
    return datum.descriptors == other.descriptors


def _has(answer: Any, fields: Mapping[str, type]) -> bool:
    """Return whether a part of an answer has fields of these types."""
    return isinstance(answer, dict) and all(isinstance(answer.get(name), fields[name]) for name in fields)


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _inlined(schema: Any, named: dict[str, Any], space: str = "") -> Any:
    """Return a schema in which the first use of each name is its definition.

    A name without a dot is in the namespace around it (`space`), if that has one, as Avro's Java library
    writes it.
    """
    if isinstance(schema, str):
        name = f"{space}.{schema}" if space and f"{space}.{schema}" in named else schema
        return _inlined(named.pop(name), named, space) if name in named else schema
    if isinstance(schema, list):
        return [_inlined(branch, named, space) for branch in schema]
    if isinstance(schema, dict):
        if schema.get("type") in ("record", "error"):
            before = str(schema.get("name", "")).rpartition(".")[0]
            space = before or str(schema.get("namespace", space))
        parts = ("type", "items", "values", "fields")
        return {
            name: _inlined(value, named, space) if name in parts else value for name, value in schema.items()
        }
    return schema


@contextmanager
def _errors_of(number: int) -> Iterator[None]:
    """Name the id of a schema in the error of a decoder for it. Raises ValueRefused."""
    try:
        yield
    except ValueRefused as refused:
        raise ValueRefused(f"its schema id {number} does not fit the column: {refused}") from None
    except ValueError as error:
        raise ValueRefused(f"its schema id {number} {error}") from None


def _refuse(refused: ValueRefused, data: bytes) -> Any:
    raise refused


@dataclass(frozen=True, slots=True)
class ConfluentFormat(ValueFormat):
    """Values of a registry.

    `datum` is the format of the column's schema, and `number` its id in the registry, if they are known.
    `head` is the bytes in front of each datum, for a write.
    """

    registry: Registry
    subject: str | None
    datum: Datum | None = None
    number: int | None = None
    head: bytes = b""
    name: ClassVar[str] = "confluent"

    @classmethod
    def of(
        cls, registry: Registry, subject: str | None, datum: Datum | None, message: str | None = None
    ) -> ConfluentFormat:
        """Return the format with the given schema, else the latest of the subject.

        Args:
            registry: The registry.
            subject: The subject of the topic, if there is one topic.
            datum: The format of a given schema.
            message: The message in the latest schema of the subject; None is the first.

        Raises:
            ValueError: The schema has no such message; the text begins with the name of the option.
        """
        if isinstance(datum, ProtobufFormat):
            files = {file.name: file for file in files_of(datum.descriptors)}
            name = next(name for name, file in files.items() if datum.message in messages_of(file))
            datum = replace(datum, descriptors=descriptors_of(name, files))
        if datum is not None:
            return cls(registry, subject, datum)
        latest = None if subject is None else registry.latest(subject)
        number, datum = latest or (None, None)
        if message is not None:
            if not isinstance(datum, ProtobufFormat):
                raise ValueError(
                    "messageName needs descFilePath, or a subject whose latest schema is of Protobuf"
                )
            names = messages_of(files_of(datum.descriptors)[-1])
            if message not in names:
                known = ", ".join(names)
                raise ValueError(
                    f"messageName {message} is not in the latest schema of {subject}, which has {known}"
                )
            datum = replace(datum, message=message)
        return cls(registry, subject, datum, number)

    def own_type(self) -> pa.DataType | None:
        """Return the type of the schema, if there is one."""
        return None if self.datum is None else self.datum.own_type()

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""
        if writing and self.subject is None:
            return "no subject of the registry is given: option topic or subject"
        datum = self.datum
        if datum is None and not writing:
            return None
        if isinstance(datum, JsonFormat):
            return problem_of(kind)
        problem = (datum or AvroFormat()).problem(kind, writing=writing)
        if problem is None or not writing:
            return problem
        option = "descFilePath" if isinstance(datum, ProtobufFormat) else "avroSchema"
        return f"{problem}; {option} registers another schema of {self.subject}"

    def for_writing(self, kind: pa.DataType) -> ConfluentFormat:
        """Return the format with the id of its schema, which is registered if it is new."""
        datum, number = self.datum or AvroFormat(json.dumps(schema_of(kind))), self.number
        if number is None:
            assert self.subject is not None and not isinstance(datum, JsonFormat)
            number = self.registry.register(self.subject, datum)
        head = b"\0" + number.to_bytes(4, "big")
        if isinstance(datum, ProtobufFormat):
            registered = format_by_id(self.registry, number)
            assert isinstance(registered, ProtobufFormat)
            head += bytes_of(messages_of(files_of(registered.descriptors)[-1])[datum.message])
        return replace(self, datum=datum, number=number, head=head)

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""
        assert self.datum is not None and self.head
        head, encode = self.head, self.datum.encoder(kind)
        return lambda value: head + encode(value)

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""

        @cache
        def decoder_of(number: int) -> Callable[[bytes], Any]:
            try:
                return self._decoder_of(number, kind)
            except ValueRefused as refused:
                return partial(_refuse, refused)

        def decode(data: bytes) -> Any:
            if len(data) < HEADER_BYTES or data[0]:
                raise ValueRefused(
                    f"it begins with {data[:1].hex() or 'nothing'}, not with 00 and the id of a schema; "
                    "formats avro, protobuf and json have no id, and a GUID of a schema (01, or the header "
                    "__value_schema_id or __key_schema_id) is not supported"
                )
            return decoder_of(int.from_bytes(data[1:HEADER_BYTES], "big"))(data[HEADER_BYTES:])

        return decode

    def _decoder_of(self, number: int, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return the decoder of records with one schema id."""
        written = format_by_id(self.registry, number)
        if isinstance(written, JsonFormat):
            return written.decoder(kind)
        if isinstance(written, ProtobufFormat):
            return self._message_decoder(number, written, kind)
        with _errors_of(number):
            return self._avro_decoder(written, kind)

    def _avro_decoder(self, written: AvroFormat, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return the decoder of datums of one schema, which is resolved to the schema of the column."""
        assert written.schema is not None
        writer = parse_schema(written.schema)
        if not isinstance(self.datum, AvroFormat) or self.datum.schema is None:
            return decoder_of(writer, None, Types(writer, lenient=True).reader(kind))
        reader = parse_schema(self.datum.schema)
        if isinstance(reader, dict) and isinstance(writer, dict) and "name" in reader and "name" in writer:
            same_name = json.loads(self.datum.schema) | {"name": writer["name"]}
            same_name.pop("namespace", None)
            if writer["name"] != reader["name"]:  # one record, renamed
                reader = parse_schema(json.dumps(same_name))
        return decoder_of(writer, reader, Types(reader).reader(kind))

    def _message_decoder(
        self, number: int, written: ProtobufFormat, kind: pa.DataType
    ) -> Callable[[bytes], Any]:
        """Return the decoder of messages with one schema id, which may be of any type in its file."""
        names = {place: name for name, place in messages_of(files_of(written.descriptors)[-1]).items()}

        @cache
        def decoder_at(place: tuple[int, ...]) -> Callable[[bytes], Any]:
            if place not in names:
                raise ValueRefused(f"its schema id {number} has no message with the indexes {list(place)}")
            own = self.datum
            if not isinstance(own, ProtobufFormat):
                own = replace(written, message=names[place], lenient=True)
            elif own.message != names[place]:
                raise ValueRefused(
                    f"it is a {names[place]}, and the column a {own.message}: option messageName gives the "
                    "message of the column"
                )
            with _errors_of(number):
                return own.decoder(kind)

        def decode(data: bytes) -> Any:
            place, start = indexes_of(data)
            return decoder_at(place)(data[start:])

        return decode


def bytes_of(indexes: tuple[int, ...]) -> bytes:
    """Return the bytes in front of a message, by the indexes of its type."""
    if indexes == (0,):
        return b"\0"
    data = bytearray()
    for number in (len(indexes), *indexes):
        rest = number * 2  # zigzag: an odd number is negative
        while rest > 127:
            data.append(rest & 127 | 128)
            rest >>= 7
        data.append(rest)
    return bytes(data)


def indexes_of(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes in front of a message, and the position behind them. Raises ValueRefused."""
    if data[:1] == b"\0":
        return (0,), 1
    numbers: list[int] = []
    position = 0
    while len(numbers) <= (numbers[0] if numbers else 0):
        value = shift = 0
        while True:
            if position == len(data) or shift > 28:
                raise ValueRefused(
                    "it has no indexes of a message behind the id of its schema, or they are cut short"
                )
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if value & 1:
            raise ValueRefused(
                "it has a negative index of a message: its writer wrote no indexes in front of the message, "
                "or wrote them with use.deprecated.format=true, which has to be set to false"
            )
        numbers.append(value >> 1)
    return tuple(numbers[1:]), position
