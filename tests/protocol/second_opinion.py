"""Messages of Kafka's protocol beside kio, a second implementation, by seed: bytes both ways.

    python -m tests.protocol.second_opinion --messages 20000
    python -m tests.protocol.second_opinion --record        # write the golden messages again

kio needs a package under the LGPL, so nothing here imports it: it runs in a virtual environment of its own,
which `main` builds, and `kio_peer.py` answers lines of JSON. kio must read
the same values from our bytes of a random message, and we from the bytes that kio writes for the values.

Values that kio 0.6.5 cannot hold are left out (`Kio._limit`):

- Error codes that it does not have raise ValueError.
- A time after the year 2600 or so is read by way of a float, and 1 ms wrong (44 % of those up to the
  year 9999). Earlier than 1970 it raises an error.
- A duration of int64 above 2^53 ms loses its last bits, read and written; above 10^9 days, it raises
  an error.

It has no messages of the coordinators' internal topics.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.protocol import codec
from lastword.protocol.schemas import Field, Message, message_class, schema_of, within
from tests.protocol.random_messages import EVERY, random_message
from tests.support.jars import cache_directory

KIO_VERSION = "0.6.5"
PYTHON = cache_directory() / f"kio-{KIO_VERSION}" / "bin" / "python"
PEER = Path(__file__).parent / "kio_peer.py"
GOLDEN = Path(__file__).parent / "kio_messages.jsonl"
"""One message of each name, in its newest version, with the bytes that kio wrote for it."""
LAST_MS = 4102444799999
"""The last time: the end of the year 2099."""
DURATION_MS = 86_400_000 * 36_500
"""The longest duration of int64: 100 years."""
RENAMED = {"TxnOffsetCommitRequest.generation_id_or_member_epoch": "generation_id"}
"""The names in kio of the fields that Kafka 4.4.0 renamed: the same bytes, at the same place."""

Spec = list[list[Any]]
"""The fields of a struct as kio has them: name, type, tag, whether it is an array, fields of a struct."""


@dataclass(frozen=True)
class Case:
    """A message, and what kio made of it."""

    name: str
    version: int
    fields: list[Any]
    data: bytes
    answer: dict[str, Any]


class Kio:
    """kio in a process of its own; `with Kio() as kio`.

    Attributes:
        messages: The fields of each message by name and version.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(PYTHON), "-I", str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        listed = self._line()
        self.messages: dict[tuple[str, int], Spec] = {
            (name, version): spec for name, version, spec in listed["messages"]
        }
        self._codes: list[int] = listed["error_codes"]

    def __enter__(self) -> Kio:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    @property
    def shared(self) -> list[tuple[str, int]]:
        """Return the names and versions that kio has, too."""
        return [pair for pair in EVERY if pair in self.messages]

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"kio's process ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, name: str, version: int, rng: random.Random) -> Case:
        """Return a random message and the answer of kio."""
        fields = present(name, version)
        message = random_message(name, version, rng)
        self._limit(message, fields, version, self.messages[name, version], rng)
        data = codec(name, version).encode(message)
        values = values_of(message, fields, version)
        request = {"name": name, "version": version, "data": data.hex(), "fields": values}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Case(name, version, values, data, self._line())

    def _limit(
        self, message: Message, fields: list[Field], version: int, spec: Spec, rng: random.Random
    ) -> None:
        """Replace the values that kio's types cannot hold."""
        for field, (_, kind, _, _, nested) in zip(fields, spec, strict=True):
            value = getattr(message, field.name)
            if nested is not None and value is not None:
                inner = [f for f in field.fields if within(f.versions, version)]
                for struct in value if field.is_array else [value]:
                    self._limit(struct, inner, version, nested, rng)
            elif kind == "error_code":
                code = [rng.choice(self._codes) for _ in value] if field.is_array else rng.choice(self._codes)
                setattr(message, field.name, code)
            elif kind == "datetime_i64" and not -1 <= value <= LAST_MS:
                setattr(message, field.name, rng.randint(-1, LAST_MS))
            elif kind == "timedelta_i64" and abs(value) > DURATION_MS:
                setattr(message, field.name, rng.randint(-DURATION_MS, DURATION_MS))


def present(name: str, version: int) -> list[Field]:
    """Return the fields that a message has in a version."""
    return [field for field in schema_of(name).fields if within(field.versions, version)]


def values_of(message: Any, fields: list[Field], version: int) -> list[Any]:
    """Return the values of the fields in their order, as JSON has them."""

    def shown(value: Any, field: Field) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            return [shown(element, field) for element in value]
        if field.struct is not None:
            return values_of(value, [f for f in field.fields if within(f.versions, version)], version)
        return bytes(value).hex() if field.kind in ("bytes", "records", "uuid") else value

    return [shown(getattr(message, field.name), field) for field in fields]


def message_of(values: list[Any], name: str, version: int) -> Message:
    """Return the message of these values."""

    def struct(values: list[Any], fields: list[Field], kind: type[Message]) -> Message:
        return kind(**{f.name: made(value, f) for f, value in zip(fields, values, strict=True)})

    def made(value: Any, field: Field) -> Any:
        if value is not None and field.is_array:
            return [element(part, field) for part in value]
        return element(value, field)

    def element(value: Any, field: Field) -> Any:
        if value is None:
            return None
        if field.struct is not None:
            return struct(value, [f for f in field.fields if within(f.versions, version)], field.struct)
        return bytes.fromhex(value) if field.kind in ("bytes", "records", "uuid") else value

    return struct(values, present(name, version), message_class(name))


def faults(case: Case) -> Iterator[str]:
    """Yield the differences between kio's answer and the message."""
    answer = case.answer
    if "parsed" not in answer:
        yield f"kio cannot read: {answer['parse_error']}"
    elif answer["left"]:
        yield f"kio leaves {answer['left']} bytes"
    elif answer["parsed"] != case.fields:
        yield f"kio read {answer['parsed']} of {case.fields}"
    if "written" not in answer:
        yield f"kio cannot write: {answer['write_error']}"
        return
    text = codec(case.name, case.version)
    try:
        message = text.decode(bytes.fromhex(answer["written"]))
    except Exception as error:
        yield f"kio's bytes cannot be read: {error!r}"
        return
    values = values_of(message, present(case.name, case.version), case.version)
    if values != case.fields:
        yield f"{values} was read from kio's bytes of {case.fields}"


def misnamed(fields: list[Field], spec: Spec, version: int, place: str) -> Iterator[str]:
    """Yield the fields of a message whose name, tag or array kio has otherwise. It leaves out `_ms`."""
    for field, (name, _, tag, is_array, nested) in zip(fields, spec, strict=True):
        ours = (field.tag if within(field.tagged, version) else None, field.is_array)
        known = RENAMED.get(f"{place}.{field.name}", field.name)
        if known not in (name, f"{name}_ms") or ours != (tag, is_array):
            yield f"{place}.{field.name}"
        if nested is not None:
            inner = [f for f in field.fields if within(f.versions, version)]
            yield from misnamed(inner, nested, version, f"{place}.{field.name}")


def build() -> None:
    """Make the virtual environment of kio, once."""
    if not PYTHON.exists():
        directory = PYTHON.parents[1]
        try:
            subprocess.run([sys.executable, "-m", "venv", directory], check=True)
            subprocess.run([PYTHON, "-m", "pip", "install", "-q", f"kio=={KIO_VERSION}"], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def record() -> None:
    """Write the golden messages."""
    newest = dict(EVERY)
    with Kio() as kio:
        cases = [
            kio.ask(name, version, random.Random(7))
            for name, version in kio.shared
            if version == newest[name]
        ]
    lines = [
        json.dumps(
            {
                "name": case.name,
                "version": case.version,
                "fields": case.fields,
                "written": case.answer["written"],
            }
        )
        for case in cases
    ]
    GOLDEN.write_text("".join(f"{line}\n" for line in lines))


def main() -> int:
    """Compare random messages; return 1 if one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    build()
    if options.record:
        record()
        return 0
    rng, different, compared = random.Random(options.seed), 0, 0
    with Kio() as kio:
        while compared < options.messages:
            for name, version in kio.shared:
                case = kio.ask(name, version, rng)
                compared += 1
                for fault in faults(case):
                    different += 1
                    if different <= 20:
                        print(f"{name} v{version}: {fault}")
        versions = len(kio.shared)
    print(f"{compared:,} messages of {versions} names and versions, both ways: {different} differences")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
