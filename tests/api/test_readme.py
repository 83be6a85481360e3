"""The README's Python blocks, as they are printed there: they run, and print what they say they print."""

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import lastword

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"


def block(first_words, **replaced):
    """The block of Python that has these words, with texts replaced: paths, and how long it would wait."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = [one for one in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if first_words in one]
    for old, new in replaced.items():
        assert old in found, old
        found = found.replace(old, new)
    return found


def five_minutes(path):
    """Runs the first block; returns what it prints, line by line."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(block("users = logs.state", **{'"data"': repr(str(path))}), {})
    return out.getvalue().splitlines()


def test_five_minutes(tmp_path):
    printed = five_minutes(tmp_path / "data")
    assert printed == [
        "{'ada': {'city': 'Turin'}}",
        "0 ada {'city': 'London'}",
        "1 ada {'city': 'Turin'}",
        "2 bob {'city': 'Oslo'}",
        "3 bob None",
        "users-0: 4 records -> 2; the tombstone at 3 may go in 24 h",
    ]
    told = re.findall(r"print\(.*#\s(.*)", block("users = logs.state"))
    assert told == [printed[0], f"{printed[1]} ... {printed[4]}", printed[5]]


def test_the_other_blocks(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic(
            "users", key_serializer="str", value_serializer="json", cleanup_policy="compact"
        )
        known = {"logs": logs, "users": users, "topic": users, "rows": [("bob", {"city": "Oslo"})]}
        exec(block("ack=", **{"timeout=60": "timeout=0"}), known)
        assert users.last_sequence("loader") == 42 and users.bounds() == {0: (0, 2)}
        exec(block("logs.cleaner", **{"/srv/d2": str(tmp_path / "data")}), known)
        assert logs.cleaner.status().drives[0].bytes_per_second == 20 << 20
        exec(block("lease = "), known)
        assert users.leases()[0].position == 0


def test_quickstart_can_be_run_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", str(tmp_path / "data")])
    for restored in ("restored: {}", "restored: {'ada': {'city': 'Turin'}}"):
        runpy.run_path(str(QUICKSTART), run_name="__main__")
        printed = capsys.readouterr().out
        assert printed.startswith(restored) and "users-0:" in printed and "verified: sound" in printed
