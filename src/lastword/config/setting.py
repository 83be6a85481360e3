"""The description of one setting: Kafka name, unit, default, range, and cost.

Each field of `TopicConfig` and `LogConfig` carries a `Setting`, made by the functions below; its text is in
the docstring of the class. These are the only source of the loader, the command `config`, keywords.py and
docs/settings.md.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lastword.errors import LastwordError
from lastword.parse import parse_bytes, parse_setting_ms
from lastword.units import exact_bytes, exact_duration
from lastword.wire import INT32_MAX, INT64_MAX

POLICIES = ("compact", "delete")

Group = Literal["behaviour", "cost"]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting.

    Attributes:
        name: The dotted name, as Kafka spells it.
        text: One or two sentences for the reference, from the docstring of the config class.
        unit: Unit of the value; empty for a word.
        group: "behaviour" if it changes which records are kept or served, "cost" if it changes only the cost.
        parse: Converts a value to its own type; raises ValueError, TypeError or LastwordError.
        show: Converts a value to text that `parse` accepts.
        allowed: The allowed values, as words of an error message.
        annotation: The Python type of values that `parse` accepts, for keywords.py.
    """

    name: str
    text: str
    unit: str
    group: Group
    parse: Callable[[Any], Any]
    show: Callable[[Any], str]
    allowed: str
    annotation: str

    @property
    def keyword(self) -> str:
        """Return the name as a Python keyword and attribute: dots become underscores."""
        return self.name.replace(".", "_")

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return "LASTWORD_" + self.name.removeprefix("lastword.").replace(".", "_").upper()

    def read(self, value: Any) -> Any:
        """Check a value and convert it to its own type; ValueError names the allowed values."""
        try:
            return self.parse(value)
        except (TypeError, ValueError, LastwordError):
            raise ValueError(f"{value!r} is not {self.allowed}") from None

    def read_kafka(self, text: str) -> Any:
        """Convert a value of Kafka as its ConfigDef does: other words for numbers than ours, no units.

        Raises:
            ValueError: Kafka refuses the value, too, or it is of a newer Kafka.
        """
        try:
            return self.parse(_KAFKA_TYPES.get(self.unit, _kafka_text)(text.strip(_TRIMMED)))
        except (TypeError, ValueError, LastwordError):
            raise ValueError(f"{text!r} is not {self.allowed}") from None


_TRIMMED = "".join(map(chr, range(33)))
"""The characters that Java's `String.trim` removes."""
_JAVA_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[fd]?", re.ASCII | re.IGNORECASE)
_JAVA_HEX = re.compile(r"[+-]?0x([\da-f]+\.?|[\da-f]*\.[\da-f]+)p[+-]?\d+[fd]?", re.ASCII | re.IGNORECASE)


def _java_integer(text: str) -> int:
    """Return the number that Java's `Long.parseLong` returns; its digits may be of any script."""
    if not re.fullmatch(r"[+-]?\d+", text) or not -INT64_MAX <= int(text) + 1 <= INT64_MAX + 1:
        raise ValueError
    return int(text)


def _java_double(text: str) -> float:
    """Return the number that Java's `Double.parseDouble` returns. NaN is 1: no ratio is above either."""
    if text.lstrip("+-") == "NaN" and len(text) <= 4:
        return 1.0
    if _JAVA_HEX.fullmatch(text):
        return float.fromhex(re.sub(r"(?i)(p.*)[fd]$", r"\1", text))
    if not _JAVA_NUMBER.fullmatch(text):
        raise ValueError
    return float(text.rstrip("fFdD"))


def _kafka_text(text: str) -> str:
    """Return a text that Java has trimmed. Python's `strip` would remove more."""
    if text != text.strip():
        raise ValueError
    return text


def _kafka_list(text: str) -> list[str]:
    return [_kafka_text(part) for part in re.split(r"[ \t\n\v\f\r]*,[ \t\n\v\f\r]*", text)] if text else []


_KAFKA_TYPES: Mapping[str, Callable[[str], Any]] = {
    "bytes": lambda text: max(_java_integer(text), -1),  # each negative retention.bytes is no limit
    "ms": _java_integer,
    "count": _java_integer,
    "ratio": _java_double,
    "list": _kafka_list,
}
"""Kafka's parsers of a text, by unit; a text without a parser is taken as it is."""


def _field(*facts: Any, **default: Any) -> Any:
    """Return the field of a setting. `facts` are the fields of `Setting` behind the text, in their order."""
    names = [field.name for field in dataclasses.fields(Setting)][2:]
    return dataclasses.field(metadata=dict(zip(names, facts, strict=True)), **default)


def _ranged(parse: Callable[[Any], int | float], low: float, high: float) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        number = parse(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return checked


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _range_text(kind: str, low: int, high: int, show: Callable[[int], str]) -> str:
    return f"{kind} from {show(low)}" + (f" to {show(high)}" if high < INT32_MAX else "")


def _size_text(size_bytes: int) -> str:
    text = exact_bytes(size_bytes)
    return f"{text} B" if text.isdigit() and size_bytes else text


def size(default: str | int | None, group: Group, low: int = 0, high: int = INT64_MAX) -> Any:
    """Make a setting in bytes. Default None: not set; no value means "not set"."""
    return _field(
        "bytes",
        group,
        _ranged(parse_bytes, low, high),
        lambda value: "none" if value is None else exact_bytes(value),
        _range_text("a size", low, high, _size_text),
        "Size",
        default=None if default is None else parse_bytes(default),
    )


def duration(default: str | int, group: Group, low: int = 0, high: int = INT64_MAX) -> Any:
    """Make a setting in milliseconds."""
    return _field(
        "ms",
        group,
        _ranged(parse_setting_ms, low, high),
        lambda value: str(value) if value == INT64_MAX else exact_duration(value),
        _range_text("a duration", low, high, exact_duration),
        "Duration",
        default=parse_setting_ms(default),
    )


def count(default: int, group: Group, low: int = 0, high: int = INT64_MAX) -> Any:
    """Make a setting that is a whole number."""
    allowed = _range_text("a whole number", low, high, str)
    return _field("count", group, _ranged(_whole, low, high), str, allowed, "int | str", default=default)


def ratio(default: float, group: Group, low: float = 0, high: float = 1) -> Any:
    """Make a setting that is a ratio."""
    allowed = f"a number from {low:g} to {high:g}"
    return _field("ratio", group, _ranged(_fraction, low, high), str, allowed, "float | str", default=default)


def flag(default: bool, group: Group) -> Any:
    """Make a setting that is true or false."""

    def parse(value: Any) -> bool:
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"

    return _field(
        "true or false",
        group,
        parse,
        lambda v: str(v).lower(),
        "true or false",
        "bool | str",
        default=default,
    )


def choice(default: str | None, group: Group, known: tuple[str, ...]) -> Any:
    """Make a setting that is one of some words."""

    def parse(value: Any) -> str:
        if value not in known:
            raise ValueError
        return str(value)

    return _field("", group, parse, str, "one of " + ", ".join(known), "str", default=default)


def word(default: str | None, group: Group) -> Any:
    """Make a setting that is a name."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value

    return _field("", group, parse, lambda v: "none" if v is None else v, "a name", "str", default=default)


def directory(group: Group) -> Any:
    """Make a setting that is a path, or `off` (None, the default)."""

    def parse(value: Any) -> str | None:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return None if value.strip().lower() == "off" else value

    return _field(
        "", group, parse, lambda v: "off" if v is None else v, "a directory, or off", "str", default=None
    )


def words(group: Group) -> Any:
    """Make a setting that is a list, or a string with commas."""

    def parse(value: Any) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(str(part).strip() for part in parts if str(part).strip())

    return _field("list", group, parse, ",".join, "a list of paths", "str | Iterable[str]", default=())


NO_POLICY = "none"
"""The text of the empty set of policies, which Kafka writes as an empty text."""


def policy(group: Group) -> Any:
    """Make a setting that is `compact`, `delete`, both, or neither: `none`.

    Default None: not set. The empty set is a value, and no default replaces it.
    """

    def parse(value: Any) -> frozenset[str]:
        if isinstance(value, str):
            value = [] if value.strip() in ("", NO_POLICY) else value.split(",")
        names = frozenset(str(part).strip() for part in value)
        if not names <= set(POLICIES):
            raise ValueError
        return names

    def show(value: frozenset[str] | None) -> str:
        return "not set" if value is None else ",".join(sorted(value)) or NO_POLICY

    allowed = "compact, delete, compact,delete, or none"
    return _field("list", group, parse, show, allowed, "str | Iterable[str]", default=None)


def sizes_by_path(group: Group) -> Any:
    """Make a setting that maps paths to sizes."""

    def parse(value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping):
            raise TypeError
        rates = {str(path): parse_bytes(rate) for path, rate in value.items()}
        if any(rate < 1 for rate in rates.values()):
            raise ValueError
        return rates

    def show(value: Mapping[str, int]) -> str:
        return ", ".join(f"{path}: {exact_bytes(rate)}" for path, rate in value.items()) or "none"

    allowed, annotation = 'sizes by path, as drives."/srv/d2" = "20MiB"', "Mapping[str, Size] | str"
    return _field("bytes per second", group, parse, show, allowed, annotation, default_factory=dict)


def table(kind: type[Any]) -> dict[str, Setting]:
    """Return the settings of a config class by dotted name, in the order of its fields."""
    texts = _texts(kind.__doc__ or "")
    settings = {}
    for field in dataclasses.fields(kind):
        if field.metadata:
            name = field.name.replace("_", ".")
            settings[name] = Setting(name=name, text=texts.get(field.name, ""), **field.metadata)
    return settings


def _texts(docstring: str) -> dict[str, str]:
    """Return the text of each attribute in the section `Attributes:`, which is the last one."""
    section = inspect.cleandoc(docstring).partition("Attributes:")[2]
    attributes = re.split(r"\n {4}(?=\S)", section)[1:]
    return {name: " ".join(text.split()) for name, _, text in (each.partition(": ") for each in attributes)}
