"""Values of a schema registry: a byte 0, four bytes with the id of a schema, and a datum.

The schemas are on a server (`schema.registry.url` of http or https) or in a folder, as `<id>.avsc`. A server
is asked by plain HTTP: the schema of an id, the latest schema of a subject, the id of a schema to write. A
process asks once for each id.

Reading. Each record is read with the schema of its own id. The schema of the column is `avroSchema`, else
the latest of the subject: records of other ids are resolved to it, with its defaults. Without either, fields
are matched by name, and fields that a record's schema lacks are null. JSON of a registry is read too.

Writing. The schema is `avroSchema`, else the latest of the subject if the column fits it, else the one that
the type has. A server registers it; the driver does that once for each write, never a task.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lastword.errors import RegistryError
from lastword.value_formats.avro import Types, decoder_of, encoder_of, parse_schema, schema_of
from lastword.value_formats.interface import Refused, ValueFormat
from lastword.value_formats.json_text import JsonFormat

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_SECONDS = 30
HEADER_BYTES = 5


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry: the URL of a server or a folder, and `user:password` for a server."""

    place: str
    user: str | None = None

    @property
    def is_server(self) -> bool:
        """Return whether the registry is a server."""
        return self.place.startswith(("http://", "https://"))

    def by_id(self, number: int) -> tuple[str, str]:
        """Return the kind (AVRO, JSON, PROTOBUF) and the text of a schema. Refused if there is none."""
        if not self.is_server:
            file = Path(self.place) / f"{number}.avsc"
            if not file.is_file():
                raise Refused(f"its schema id {number} is not in {self.place}")
            return "AVRO", file.read_text(encoding="utf-8")
        answer = self._ask(f"/schemas/ids/{number}")
        if answer is None:
            raise Refused(f"its schema id {number} is not in the registry {self.place}")
        return answer.get("schemaType", "AVRO"), self._whole(answer)

    def latest(self, subject: str) -> str | None:
        """Return the latest Avro schema of a subject; None if there is none. A folder has no subjects."""
        if not self.is_server:
            return None
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return None if answer is None or answer.get("schemaType", "AVRO") != "AVRO" else self._whole(answer)

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema, which a server registers for the subject.

        Raises:
            RegistryError: The server refuses the schema, or no file of the folder has it.
        """
        if self.is_server:
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
            answer = self._ask(path, {"schema": schema})
            if answer is None:
                raise RegistryError(
                    f"the registry {self.place} has no {path}", remedy="correct schema.registry.url"
                )
            return int(answer["id"])
        numbers = sorted(int(file.stem) for file in Path(self.place).glob("*.avsc") if file.stem.isdecimal())
        for number in reversed(numbers):
            if json.loads(self.by_id(number)[1]) == json.loads(schema):
                return number
        unused = numbers[-1] + 1 if numbers else 1
        raise RegistryError(
            f"no file of {self.place} has the schema of {subject}",
            remedy=f"write this to {self.place}/{unused}.avsc: {schema}",
        )

    def _whole(self, answer: dict[str, Any]) -> str:
        """Return the schema of an answer, with the schemas that it refers to in it."""
        text = str(answer["schema"])
        if not answer.get("references") or answer.get("schemaType", "AVRO") != "AVRO":
            return text
        named: dict[str, Any] = {}
        self._refer(answer, named)
        return json.dumps(_inlined(json.loads(text), named))

    def _refer(self, answer: dict[str, Any], named: dict[str, Any]) -> None:
        for reference in answer.get("references") or ():
            subject = urllib.parse.quote(reference["subject"], safe="")
            other = self._ask(f"/subjects/{subject}/versions/{reference['version']}")
            if other is None:
                raise Refused(f"its schema refers to {reference['subject']}, which is not in the registry")
            named[reference["name"]] = json.loads(other["schema"])
            self._refer(other, named)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the JSON of an answer; None for status 404. RegistryError for every other failure."""
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
                return result
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode("utf-8", "replace")
            if error.code == 404:
                return None
            remedy = "try again"
            if error.code in (401, 403):
                remedy = "give basic.auth.user.info=user:password"
            elif error.code in (409, 422):
                remedy = "give an avroSchema that is compatible with the subject, or another subject"
            raise RegistryError(f"{url} answers {error.code}: {text.strip()}", remedy=remedy) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryError(
                f"{url} does not answer: {reason}", remedy="check schema.registry.url, and try again"
            ) from None


@lru_cache(maxsize=1024)
def schema_by_id(registry: Registry, number: int) -> tuple[str, str]:
    """Return the kind and the text of a schema, which never changes; asked once in a process."""
    return registry.by_id(number)


def _inlined(schema: Any, named: dict[str, Any]) -> Any:
    """Return a schema in which the first use of each name is its definition."""
    if isinstance(schema, str) and schema in named:
        return _inlined(named.pop(schema), named)
    if isinstance(schema, list):
        return [_inlined(branch, named) for branch in schema]
    if isinstance(schema, dict):
        parts = ("type", "items", "values", "fields")
        return {name: _inlined(value, named) if name in parts else value for name, value in schema.items()}
    return schema


def _refuse(refused: Refused, data: bytes) -> Any:
    raise refused


@dataclass(frozen=True, slots=True)
class ConfluentFormat(ValueFormat):
    """Values of a registry. `schema` is the schema of the column; `number` its id, for a write."""

    registry: Registry
    subject: str | None
    schema: str | None = None
    number: int | None = None
    name: ClassVar[str] = "confluent"

    @classmethod
    def of(cls, registry: Registry, subject: str | None, schema: str | None) -> ConfluentFormat:
        """Return the format with the given schema, else the latest of the subject."""
        if schema is None and subject is not None:
            schema = registry.latest(subject)
        return cls(registry, subject, schema)

    def own_type(self) -> pa.DataType | None:
        """Return the type of the schema, if there is one."""
        return None if self.schema is None else Types(parse_schema(self.schema)).arrow()

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""
        if writing and self.subject is None:
            return "no subject of the registry is given: option topic or subject"
        try:
            if writing:
                Types(parse_schema(self._text(kind))).writer(kind)
            elif self.schema is not None:
                Types(parse_schema(self.schema)).reader(kind)
        except (Refused, ValueError) as error:
            latest = f"; avroSchema registers another schema of {self.subject}" if writing else ""
            return f"{error}{latest}"
        return None

    def for_writing(self, kind: pa.DataType) -> ConfluentFormat:
        """Return the format with the id of its schema, which is registered if it is new."""
        text = self._text(kind)
        assert self.subject is not None
        return replace(self, schema=text, number=self.registry.register(self.subject, text))

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises Refused."""
        assert self.number is not None
        head = b"\0" + self.number.to_bytes(4, "big")
        encode = encoder_of(Types(parse_schema(self._text(kind))), kind)
        return lambda value: head + encode(value)

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises Refused."""
        decoders: dict[int, Callable[[bytes], Any]] = {}

        def decode(data: bytes) -> Any:
            if len(data) < HEADER_BYTES or data[0]:
                raise Refused(
                    f"it begins with {data[:1].hex() or 'nothing'}, not with 00 and the id of a schema; "
                    "formats avro and json have no id"
                )
            number = int.from_bytes(data[1:HEADER_BYTES], "big")
            if number not in decoders:
                try:
                    decoders[number] = self._decoder_of(number, kind)
                except Refused as refused:
                    decoders[number] = partial(_refuse, refused)
            return decoders[number](data[HEADER_BYTES:])

        return decode

    def _text(self, kind: pa.DataType) -> str:
        return self.schema if self.schema is not None else json.dumps(schema_of(kind))

    def _decoder_of(self, number: int, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return the decoder of records with one schema id."""
        form, text = schema_by_id(self.registry, number)
        if form == "JSON":
            return JsonFormat().decoder(kind)
        if form != "AVRO":
            raise Refused(f"its schema id {number} is of type {form}; AVRO and JSON are read")
        try:
            writer = parse_schema(text)
        except ValueError as error:
            raise Refused(f"its schema id {number} {error}") from None
        if self.schema is None:
            return decoder_of(writer, None, Types(writer, lenient=True).reader(kind))
        reader = parse_schema(self.schema)
        if isinstance(reader, dict) and isinstance(writer, dict) and "name" in reader and "name" in writer:
            same_name = json.loads(self.schema) | {"name": writer["name"]}
            same_name.pop("namespace", None)
            if writer["name"] != reader["name"]:  # one record, renamed
                reader = parse_schema(json.dumps(same_name))
        return decoder_of(writer, reader, Types(reader).reader(kind))
