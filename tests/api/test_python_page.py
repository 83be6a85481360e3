"""docs/python.md and docs/reference/: the examples run as printed, and every public name has an entry."""

import re
from pathlib import Path

import lastword
from lastword import spark

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "python.md").read_text(encoding="utf-8")
PAGES = [DOCS / "reference.md", *(DOCS / "reference").glob("*.md")]
ENTRIES = re.findall(r"^::: (\S+)$", "".join(page.read_text(encoding="utf-8") for page in PAGES), re.M)


def test_every_public_name_is_there():
    for name in lastword.__all__:
        entry = f"lastword.{name}"
        assert entry in ENTRIES or any(other.startswith(f"{entry}.") for other in ENTRIES), name
    assert {f"lastword.spark.{name}" for name in spark.__all__} <= set(ENTRIES)


def test_the_guide_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """The blocks run in order; a comment after a print has the expected output."""
    monkeypatch.chdir(tmp_path)
    session = {}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.M | re.S)
    assert len(blocks) == 9
    for block in blocks:
        exec(block, session)
        expected = re.findall(r"print\(.*\)\s+# (.*)$", block, re.M)
        printed = capsys.readouterr().out.splitlines()
        assert not expected or printed == expected


def test_what_the_guide_says_of_json_holds(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        values = logs.state("values")
        lines = re.findall(r"^\| (`.*?) \|$", GUIDE.partition("**JSON** is the default")[2], re.M)[:4]
        assert "SerializerError" in lines[3]
        for line in lines:
            stored, _, back = line.partition(" | ")
            for text in re.findall("`([^`]+)`", stored):
                if "SerializerError" not in back:
                    values["k"] = eval(text)
                    expected = re.findall("`([^`]+)`", back) or [text]
                    assert values["k"] == eval(expected[0]), text
        for refused in (float("nan"), {1}, b"x"):
            written = logs["values"].bounds()
            try:
                values["k"] = refused
            except lastword.errors.SerializerError:
                assert logs["values"].bounds() == written
            else:
                raise AssertionError(refused)
