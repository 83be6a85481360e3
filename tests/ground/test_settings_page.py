from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

from lastword.config import Settings

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_tables_say() -> None:
    script = runpy.run_path(str(DOCS / "make_settings.py"))
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == script["page"](), "run docs/make_settings.py"


def test_its_sample_is_accepted_and_changes_nothing() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    said = [line for line in lines if not line.split("#")[0].rstrip().endswith("=") and "drives" not in line]
    sample = "\n".join(line for line in said if " = " in line or line.startswith("["))
    assert tomllib.loads(sample)
    settings = Settings.from_text(sample)
    assert settings.instance == Settings.from_text("").instance
    assert settings.topic("any") == Settings.from_text("").topic("any")
