"""Every numbered property is stated in the docstring of a test, with the same words everywhere."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
NUMBERS = range(1, 343)
LABEL = re.compile(r"6([A-Z])\.(\d+): ")
MENTION = re.compile(r"6[A-Z][._]\d")
NUMBERED = re.compile(r"test_6([A-Z])_((?:\d+_)+)")
README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
SECTIONS = {
    letter: range(int(first), int(last) + 1)
    for letter, first, last in re.findall(r"^\| 6([A-Z]) \| (\d+)-(\d+) \|", README, re.M)
}
NOT_HERE = {int(number) for number in re.findall(r"^- 6[A-Z]\.(\d+): ", README, re.M)}


def statements_of(docstring: str) -> Iterator[tuple[str, int, str]]:
    """Yield (section, number, statement) of a docstring; a statement ends at a label or a blank line."""
    parts = LABEL.split(docstring)
    for letter, number, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield letter, int(number), " ".join(text.split("\n\n")[0].split())


@cache
def stated() -> dict[str, list[tuple[str, int, str]]]:
    """Return the statements of each test, by `path::name`."""
    result: dict[str, list[tuple[str, int, str]]] = {}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if MENTION.search(text) else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                name = f"{path.relative_to(TESTS)}::{node.name}"
                result[name] = list(statements_of(ast.get_docstring(node) or ""))
    return result


def test_every_number_is_stated() -> None:
    numbers = {number for statements in stated().values() for _, number, _ in statements}
    assert numbers | NOT_HERE == set(NUMBERS)
    assert len(NOT_HERE) == 3


def test_sections_cover_the_numbers() -> None:
    assert [number for section in SECTIONS.values() for number in section] == list(NUMBERS)
    for name, statements in stated().items():
        for letter, number, _ in statements:
            assert number in SECTIONS[letter], f"{name}: {number} is not in section 6{letter}"


def test_a_number_has_one_statement() -> None:
    texts: dict[int, set[str]] = defaultdict(set)
    for statements in stated().values():
        for _, number, text in statements:
            texts[number].add(text)
    assert not {number: wordings for number, wordings in texts.items() if len(wordings) > 1}
    assert not [number for number, wordings in texts.items() if len(next(iter(wordings)).split()) < 4]


def test_a_numbered_test_states_its_numbers() -> None:
    for name, statements in stated().items():
        if match := NUMBERED.search(name):
            numbers = {int(number) for number in match[2].split("_") if number}
            assert numbers <= {number for _, number, _ in statements}, name
            assert {letter for letter, _, _ in statements} >= {match[1]}, name
