"""docs/python.md: its reference is what the docstrings say, and its examples run as they are printed."""

import re
import runpy
from pathlib import Path

import lastword

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "python.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(DOCS / "make_python.py"))
GUIDE, _, REFERENCE = TEXT.partition(SCRIPT["MARK"])


def test_the_reference_is_current():
    assert SCRIPT["current"](TEXT) == TEXT, "run docs/make_python.py"


def test_every_public_name_is_there():
    for name in lastword.__all__:
        assert re.search(rf"^###? (lastword\.)?{name}$", REFERENCE, re.M) or name == "spark", name
    for method in (
        "State.incr",
        "State.change",
        "Reader.close",
        "LogDir.state",
        "Topic.lease",
        "Clock.advance",
    ):
        assert f"\n{method}(" in REFERENCE, method
    assert " at 0x" not in REFERENCE


def test_the_guide_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """Its blocks in their order; a comment behind a print says what is printed."""
    monkeypatch.chdir(tmp_path)
    session = {}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.M | re.S)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, session)
        told = re.findall(r"print\(.*\)\s+# (.*)$", block, re.M)
        printed = capsys.readouterr().out.splitlines()
        assert not told or printed == told


def test_what_the_guide_says_of_json_holds(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        values = logs.state("values")
        for line in re.findall(r"^\| (`.*?) \|$", GUIDE.partition("What **JSON** does")[2], re.M)[:4]:
            stored, _, back = line.partition(" | ")
            for text in re.findall("`([^`]+)`", stored):
                if "SerializerError" not in back:
                    values["k"] = eval(text) if "nested" not in text else None
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
