"""Kafka's schemas, the APIs with their versions, and the classes of messages that are made from them.

`schemas.jsonl` has one line for each message: Kafka's own schema. A line is parsed, and the class is made, at
first use: slots, keyword arguments, Python names (`topic_id` for Kafka's "TopicId"). One class serves all
versions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import cache
from threading import RLock
from typing import Any, NamedTuple, dataclass_transform

from lastword.errors import UnsupportedVersionError

ZERO_UUID = bytes(16)
"""The id that stands for no id. Ids are 16 bytes."""


@dataclass_transform(kw_only_default=True)
class Message:
    """The base class of messages and of their structs."""

    __slots__: Sequence[str] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


def message_class(name: str) -> type[Message]:
    """Return the class of a message; its structs are attributes, e.g. `FetchResponse.PartitionData`.

    Raises:
        UnsupportedVersionError: These schemas do not have this message.
    """
    return schema_of(name).structs[name][1]


def names() -> list[str]:
    """Return the names of all messages."""
    return re.findall(r'^\{"name":"(\w+)"', _table(), re.MULTILINE)


def versions(name: str) -> range:
    """Return the versions of a message."""
    first, last = schema_of(name).versions
    return range(first, last + 1)


def snake(name: str) -> str:
    """Return Kafka's name of a field in Python's spelling: "TopicId" is "topic_id"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


_NEWEST = 32767
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_lock = RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=RLock()))
_schemas: dict[str, Schema] = {}


class Field:
    """One field of a struct, with its versions as pairs of first and last."""

    __slots__ = (
        "default",
        "fields",
        "flexible",
        "ignorable",
        "is_array",
        "kafka_name",
        "kind",
        "name",
        "nullable",
        "struct",
        "tag",
        "tagged",
        "versions",
    )

    def __init__(self, source: dict[str, Any], struct: tuple[list[Field], type[Message]] | None) -> None:
        self.kafka_name = source["name"]
        self.name = snake(source["name"])
        self.is_array = source["type"].startswith("[]")
        self.kind = source["type"].removeprefix("[]")
        self.tagged = _range(source.get("taggedVersions", "none"))
        self.versions = _range(source.get("versions", source.get("taggedVersions", "none")))
        self.nullable = _range(source.get("nullableVersions", "none"))
        self.flexible = source.get("flexibleVersions") != "none"
        self.tag = source.get("tag", -1)
        self.ignorable = source.get("ignorable", False)
        self.fields: list[Field] = struct[0] if struct else []
        self.struct: type[Message] | None = struct[1] if struct else None
        self.default = self._default(source.get("default"))

    def _default(self, source: Any) -> Any:
        """Return the default as Python source."""
        if source == "null" or (source is None and self.kind == "records"):
            return "None"
        if self.is_array:
            return "[]"
        if self.struct is not None:
            return f"{class_name(self.struct)}()"
        if self.kind == "string":
            return repr(source or "")
        if self.kind == "bytes":
            return 'b""'
        if self.kind == "uuid":
            return "ZERO_UUID"
        if self.kind == "bool":
            return "True" if source in (True, "true") else "False"
        if self.kind == "float64":
            return repr(float(source or 0))
        return repr(int(str(source or 0), 0))

    def differs(self, value: str) -> str:
        """Return an expression that is true if `value` is not the default."""
        if self.default == "None":
            return f"{value} is not None"
        if self.is_array or self.kind == "bytes":
            return f"{value} is None or len({value})"
        if self.struct is not None:
            inner = " or ".join(f"({field.differs(f'{value}.{field.name}')})" for field in self.fields)
            return f"{value} is None or {inner or 'False'}"
        return f"{value} != {self.default}"


@cache
def _table() -> str:
    # The loader reads from a directory and from a zip file; importlib.resources takes 15 ms to import.
    data: bytes = __spec__.loader.get_data(f"{os.path.dirname(__file__)}/schemas.jsonl")  # type: ignore[union-attr]  # also from a zip
    return data.decode()


class Schema:
    """The schema of one message.

    Attributes:
        name: Kafka's name.
        key: The API key, or the type of a coordinator's record.
        versions: The first and the last version.
        flexible: The versions with compact lengths and tagged fields.
        structs: (fields, class) of the message and of each struct in it, by name.
    """

    __slots__ = ("_common", "flexible", "key", "name", "structs", "versions")

    def __init__(self, source: dict[str, Any]) -> None:
        self.name: str = source["name"]
        self.key: int = source.get("apiKey", -1)
        self.versions = _range(source["validVersions"])
        self.flexible = _range(source["flexibleVersions"])
        self.structs: dict[str, tuple[list[Field], type[Message]]] = {}
        self._common = {common["name"]: common["fields"] for common in source.get("commonStructs", ())}
        _, outer = self._add(self.name, source["fields"])
        for name, (_, inner) in self.structs.items():
            if inner is not outer:
                setattr(outer, name, inner)

    @property
    def fields(self) -> list[Field]:
        """Return the fields of the message."""
        return self.structs[self.name][0]

    def _add(self, name: str, sources: list[dict[str, Any]]) -> tuple[list[Field], type[Message]]:
        """Return fields and class of a struct, after those of the structs in it were added."""
        if name not in self.structs:
            fields = []
            for source in sources:
                kind = source["type"].removeprefix("[]")
                inner = source.get("fields", self._common.get(kind))
                fields.append(Field(source, None if inner is None else self._add(kind, inner)))
            self.structs[name] = fields, _made_class(self.name, name, fields)
        return self.structs[name]


def schema_of(name: str) -> Schema:
    """Return the schema of a message.

    Raises:
        UnsupportedVersionError: There is no such message.
    """
    schema = _schemas.get(name)
    if schema is None:
        with _lock:  # one class for each name, also when two threads need it first
            schema = _schemas.get(name) or _schemas.setdefault(name, Schema(_source(name)))
    return schema


class Api(NamedTuple):
    """An API.

    Attributes:
        key: Its number in the header of a request.
        name: Its name.
        first: The first version.
        last: The last version.
        stable: The last version that Kafka advertises; a later version may still change.
        flexible: The first version with compact lengths and tagged fields, both ways.
    """

    key: int
    name: str
    first: int
    last: int
    stable: int
    flexible: int

    @classmethod
    def of(cls, request: dict[str, Any]) -> Api:
        """Return the API of a request's schema. Its response has the same versions."""
        first, last = _range(request["validVersions"])
        stable = last - request.get("latestVersionUnstable", False)
        flexible = (
            _NEWEST if request["flexibleVersions"] == "none" else _range(request["flexibleVersions"])[0]
        )
        return cls(request["apiKey"], request["name"].removesuffix("Request"), first, last, stable, flexible)


@cache
def stored_types(topic: str) -> dict[int, str]:
    """Return the types of the records of one of Kafka's topics, and the name of the key of each.

    In `__cluster_metadata`, whose records have no key, it is the name of the record.
    """
    start = rf'^{{"name":"(\w+)","topic":"{topic}","apiKey":(\d+),"type":"(?:coordinator-key|metadata)"'
    return {int(kind): name for name, kind in re.findall(start, _table(), re.MULTILINE)}


def _source(name: str) -> dict[str, Any]:
    start = f"\n{_table()}".find(f'\n{{"name":"{name}",')
    if start < 0 or not name.isalnum():
        raise UnsupportedVersionError(
            f"no message {name!r} in the schemas of Kafka's protocol",
            remedy="lastword.protocol.schemas.names() lists the messages",
        )
    source: dict[str, Any] = json.loads(_table()[start : _table().index("\n", start)])
    return source


def _made_class(message: str, name: str, fields: list[Field]) -> type[Message]:
    """Return a class with slots, and an `__init__` with a keyword for each field."""
    arguments = "".join(
        f", {field.name}={'ABSENT' if field.default.endswith(('[]', '()')) else field.default}"
        for field in fields
    )
    lines = [f"def __init__(self{', *' if fields else ''}{arguments}):"]
    for field in fields:
        value = field.name
        if field.default.endswith(("[]", "()")):  # a fresh object for each message
            value = f"{field.default} if {value} is ABSENT else {value}"
        lines.append(f" self.{field.name} = {value}")
    names: dict[str, Any] = {"ZERO_UUID": ZERO_UUID, "ABSENT": object(), **_classes(fields)}
    exec("\n".join([*lines, " pass"]), names)
    body = {
        "__slots__": tuple(field.name for field in fields),
        "__init__": names["__init__"],
        "__module__": "lastword.protocol.messages",
        "__qualname__": name if name == message else f"{message}.{name}",
        "__doc__": f"{'Message' if name == message else f'Struct of {message}:'} {name}.",
    }
    return type(name, (Message,), body)


def _classes(fields: list[Field]) -> dict[str, type[Message]]:
    return {class_name(field.struct): field.struct for field in fields if field.struct is not None}


def class_name(kind: type[Message]) -> str:
    """Return the name of a class in generated code."""
    return f"C_{kind.__name__}"


def _range(text: str) -> tuple[int, int]:
    """Return (first, last) of "3", "0-2" or "1+"; an empty range for "none"."""
    if text == "none":
        return (1, 0)
    if text.endswith("+"):
        return (int(text[:-1]), _NEWEST)
    first, _, last = text.partition("-")
    return (int(first), int(last or first))


def within(versions: tuple[int, int], version: int) -> bool:
    """Return whether a pair of first and last version has a version."""
    return versions[0] <= version <= versions[1]


_requests = (json.loads(line) for line in _table().splitlines() if '"type":"request"' in line)
APIS = {api.key: api for api in sorted(map(Api.of, _requests))}
"""The APIs that are served, by key."""
BY_NAME = {api.name: api for api in APIS.values()}
