"""Types in Spark's DDL as Arrow types: `city STRING, population BIGINT`, `array<int>`."""

from __future__ import annotations

import re
from collections.abc import Callable

from lastword.arrow import pa

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*)|(\d+)|([<>(),:]))")
_SIMPLE: dict[str, Callable[[], pa.DataType]] = {
    **dict.fromkeys(("boolean",), lambda: pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), lambda: pa.int8()),
    **dict.fromkeys(("smallint", "short"), lambda: pa.int16()),
    **dict.fromkeys(("int", "integer"), lambda: pa.int32()),
    **dict.fromkeys(("bigint", "long"), lambda: pa.int64()),
    **dict.fromkeys(("float", "real"), lambda: pa.float32()),
    **dict.fromkeys(("double",), lambda: pa.float64()),
    **dict.fromkeys(("string",), lambda: pa.string()),
    **dict.fromkeys(("binary",), lambda: pa.binary()),
    **dict.fromkeys(("date",), lambda: pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), lambda: pa.timestamp("us", tz="UTC")),
    **dict.fromkeys(("timestamp_ntz",), lambda: pa.timestamp("us")),
}


def parse_ddl(text: str) -> pa.DataType:
    """Return the Arrow type of a type in DDL; a list of columns is a struct.

    Raises:
        ValueError: The text is no such type; the message begins with the place.
    """
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"position {at}: {text[at:].strip()[:10]!r} begins no name")
        tokens.append((match.group().strip(), match.start()))
        at = match.end()
    parser = _Parser(tokens, len(text))
    alone = len(tokens) == 1 or parser.peek(1) in ("<", "(")
    kind = parser.type() if alone else parser.columns(None)
    parser.take(None)
    return kind


class _Parser:
    """Reads the tokens of a type, each with its position."""

    def __init__(self, tokens: list[tuple[str, int]], size: int) -> None:
        self._tokens = tokens
        self._size = size
        self._next = 0

    def peek(self, ahead: int = 0) -> str | None:
        number = self._next + ahead
        return self._tokens[number][0] if number < len(self._tokens) else None

    def take(self, wanted: str | None) -> None:
        """Take a token, or with None check that there is none."""
        if self.peek() != wanted:
            raise self._unexpected(wanted or "the end")
        self._next += 1

    def name(self) -> str:
        token = self.peek()
        if token is None or not (token[0] == "`" or token[0].isalpha() or token[0] == "_"):
            raise self._unexpected("a name")
        self._next += 1
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def number(self) -> int:
        token = self.peek()
        if token is None or not token.isdecimal():
            raise self._unexpected("a number")
        self._next += 1
        return int(token)

    def type(self) -> pa.DataType:
        start = self._next
        word = self.name().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "struct":
            self.take("<")
            return self.columns(">")
        if word in ("array", "map"):
            self.take("<")
            first = self.type()
            second = None
            if word == "map":
                self.take(",")
                second = self.type()
            self.take(">")
            return pa.list_(first) if second is None else pa.map_(first, second)
        self._next = start
        raise self._unexpected("a type")

    def columns(self, end: str | None) -> pa.DataType:
        """Read `name type, ...` up to a token, or to the end of the text."""
        fields = []
        while True:
            name = self.name()
            if self.peek() == ":":
                self.take(":")
            fields.append(pa.field(name, self.type()))
            if self.peek() != ",":
                break
            self.take(",")
        if end is not None:
            self.take(end)
        return pa.struct(fields)

    def _decimal(self) -> pa.DataType:
        digits, scale = 10, 0
        if self.peek() == "(":
            self.take("(")
            digits = self.number()
            if self.peek() == ",":
                self.take(",")
                scale = self.number()
            self.take(")")
        return pa.decimal128(digits, scale)

    def _unexpected(self, wanted: str) -> ValueError:
        token = self.peek()
        position = self._size if token is None else self._tokens[self._next][1]
        return ValueError(f"position {position}: {wanted} is expected, not {token or 'the end'}")
