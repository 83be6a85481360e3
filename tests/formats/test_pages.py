"""docs/formats.md and its pages describe every kind of private file, with examples that can be read."""

from __future__ import annotations

import ast
import re
import zlib
from functools import cache
from pathlib import Path

import google_crc32c
import pytest

from lastword.bucket.manifest import Layer, Manifest, PageRef, decode_page, encode_page
from lastword.errors import CorruptFileError
from lastword.files.framed import Framed

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "formats").glob("*.md")}
FRAMES = re.findall(r"^(lastword (\S+) (\d+) [0-9a-f]{8}\n\{.*\}\n)", "\n".join(PAGES.values()), re.M)


@cache
def kinds() -> dict[str, int]:
    """Return the kind and version of every frame that the source defines."""
    result: dict[str, int] = {}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Framed(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Framed":
                kind, version = (ast.literal_eval(argument) for argument in node.args[:2])
                result[kind] = version
    return result


def test_every_kind_has_a_row_and_an_example() -> None:
    assert len(kinds()) >= 10
    for kind, version in kinds().items():
        assert re.search(rf"\| .*\b{kind} {version}\b.* \|", INDEX), kind
    assert {kind: int(version) for _, kind, version in FRAMES} == kinds()


@pytest.mark.parametrize(("text", "kind", "version"), FRAMES, ids=[kind for _, kind, _ in FRAMES])
def test_framed_examples_are_sound(text: str, kind: str, version: str) -> None:
    form = Framed(kind, int(version), "bad", "none")
    assert form.encode(form.decode(text.encode(), kind)) == text.encode()
    with pytest.raises(CorruptFileError):
        form.decode(text.replace("{", "{ ").encode(), kind)


def test_every_page_has_a_row() -> None:
    assert set(re.findall(r"\(formats/([\w-]+\.md)\)", INDEX)) == set(PAGES)
    for name, text in PAGES.items():
        assert re.search(r"\*\*.*[Vv]ersion.*\*\*|^- \*\*Version", text, re.M), name
        assert "**Newer version" in text or "newer" in text or "Another version" in text or "Other" in text, (
            name
        )


def test_the_examples_of_a_bucket_are_read() -> None:
    texts = {kind: text.encode() for text, kind, _ in FRAMES}
    manifest = Manifest.decode(texts["bucket-manifest"], "manifest")
    assert zlib.decompress(manifest.encode()) == texts["bucket-manifest"]
    page = zlib.compress(texts["bucket-page"])
    entries = dict(decode_page(page, "page", PageRef("page", 1, len(page))).entries())
    assert zlib.decompress(encode_page([Layer(entries)], oldest=True)[1]) == texts["bucket-page"]
    assert all(path in manifest.changes and manifest.changes[path] is None for path in entries)


def test_other_examples_are_sound() -> None:
    for line in re.findall(r"^([0-9a-f]{8} \{.*\})$", PAGES["producers.md"], re.M):
        assert line[:8] == f"{google_crc32c.value(line[9:].encode()):08x}"
    (manifest,) = re.findall(r"^([0-9a-f]{8} \{.*\})$", PAGES["commit.md"], re.M)
    assert manifest[:8] == f"{zlib.crc32(manifest[9:].encode()):08x}"
    digits = re.findall(r"^0000[01]{2}[0-9a-f]{2}: ((?:[0-9a-f]{4} ?)+) ", PAGES["synced.md"], re.M)
    mark = bytes.fromhex("".join(digits).replace(" ", ""))
    assert len(mark) == 18 and mark[14:] == google_crc32c.value(mark[:14]).to_bytes(4, "big")
