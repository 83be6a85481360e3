"""Random messages of every name and version, from a `random.Random` or from hypothesis's own."""

from __future__ import annotations

import random
import struct
from typing import Any

from lastword.protocol.schemas import FIXED, Field, Message, message_class, names, schema_of, versions, within

EVERY = [(name, version) for name in names() for version in versions(name)]
BITS = {"b": 8, "h": 16, "H": 16, "i": 32, "I": 32, "q": 64}
TEXTS = ("", "a", "users", "é", "\U0001f600", "\0", "x" * 126, "y" * 127, "z" * 300)
LONGEST = ("w" * 32767,)
"""The longest text that a message may have."""


def random_message(name: str, version: int, rng: random.Random, texts: tuple[str, ...] = TEXTS) -> Message:
    """Return a message with random values, some of these texts among them, in the fields of the version."""
    return _struct(message_class(name), schema_of(name).fields, version, rng, texts)


def _struct(
    kind: type[Message], fields: list[Field], version: int, rng: random.Random, texts: tuple[str, ...]
) -> Message:
    present = [field for field in fields if within(field.versions, version)]
    tagged_at_default = {f.name for f in present if within(f.tagged, version) and rng.random() < 0.5}
    values = {f.name: _field(f, version, rng, texts) for f in present if f.name not in tagged_at_default}
    return kind(**values)


def _field(field: Field, version: int, rng: random.Random, texts: tuple[str, ...]) -> Any:
    if within(field.nullable, version) and rng.random() < 0.25:
        return None
    if field.is_array:
        return [_element(field, version, rng, texts) for _ in range(rng.choice((0, 1, 2, 3)))]
    return _element(field, version, rng, texts)


def _element(field: Field, version: int, rng: random.Random, texts: tuple[str, ...]) -> Any:
    if field.struct is not None:
        return _struct(field.struct, field.fields, version, rng, texts)
    if field.kind == "string":
        return rng.choice(texts)
    if field.kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 126, 127, 200)))
    if field.kind == "uuid":
        return rng.choice((bytes(16), rng.randbytes(16)))
    if field.kind == "bool":
        return rng.random() < 0.5
    if field.kind == "float64":
        return rng.choice((0.0, -1.5, 1e300, struct.unpack(">d", b"\x3f" * 8)[0]))
    letter = FIXED[field.kind]
    lowest = 0 if letter.isupper() else -(1 << BITS[letter] - 1)
    highest = lowest + (1 << BITS[letter]) - 1
    return rng.choice((0, 1, lowest, highest, rng.randint(lowest, highest)))
