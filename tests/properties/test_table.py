"""The table in README.md has every number, and every test that it names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
NUMBERS = range(1, 343)
ROW = re.compile(r"\| (\d+) \| (.*) \| (.*)\|")
TEST = re.compile(r"`([a-z0-9_/]+\.py)::(test_\w+)`")
FUNCTION = re.compile(r"^ *def (\w+)", re.MULTILINE)
NUMBERED = re.compile(r"test_6([A-Z])_((?:\d+_)+)")
SECTION = re.compile(r"## 6\.([A-Z]) ")


@cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(FUNCTION.findall(path.read_text()))


def rows() -> dict[int, tuple[str, list[tuple[str, str]], str]]:
    """Number to its section, the tests named, the remark."""
    found: dict[int, tuple[str, list[tuple[str, str]], str]] = {}
    section = ""
    for line in (Path(__file__).parent / "README.md").read_text().splitlines():
        if heading := SECTION.match(line):
            section = heading[1]
        if row := ROW.fullmatch(line):
            assert int(row[1]) not in found, f"{row[1]} is there twice"
            found[int(row[1])] = (section, TEST.findall(row[2]), row[3].strip())
    return found


def numbers_of(name: str) -> tuple[str, set[int]] | None:
    match = NUMBERED.match(name)
    return (match[1], {int(n) for n in match[2].split("_") if n}) if match else None


def test_every_number_is_there() -> None:
    assert list(rows()) == list(NUMBERS)


def test_every_number_is_shown_or_does_not_apply() -> None:
    for number, (_, tests, remark) in rows().items():
        assert tests or remark.startswith("Does not apply: "), number


def test_every_named_test_exists() -> None:
    for number, (_, tests, _) in rows().items():
        for path, name in tests:
            assert (TESTS / path).is_file() and name in functions(TESTS / path), f"{number}: {path}::{name}"


def test_numbered_tests_stand_in_their_rows() -> None:
    """Of this folder all; of others at least one, if there is any: what is renamed or added shows."""
    table = rows()
    for path in TESTS.rglob("test_*.py"):
        for name in functions(path):
            found = numbers_of(name)
            if found is None:
                continue
            letter, numbers = found
            for number in numbers & set(NUMBERS):
                section, tests, _ = table[number]
                assert section == letter, f"{path}::{name}: {number} is of 6.{section}"
                assert tests, f"{number}: {name} shows it"
                if path.parent == Path(__file__).parent:
                    assert (str(path.relative_to(TESTS)), name) in tests, f"{number}: {name}"
