from __future__ import annotations

import runpy
from pathlib import Path

from lastword.config import Settings

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_tables_say() -> None:
    script = runpy.run_path(str(DOCS / "make_settings.py"))
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == script["page"](), "run docs/make_settings.py"


def test_its_sample_is_accepted_and_shows_the_defaults() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    lines = [line.removeprefix("# ") for line in text.splitlines() if line]
    everything = Settings.from_text("\n".join(lines))
    assert everything.topic("any").compacts and everything.instance.drives == {"/srv/d2": 20 << 20}
    examples = ("not set by default", "drives.")
    settings = Settings.from_text(
        "\n".join(line for line in lines if not any(mark in line for mark in examples))
    )
    assert settings.instance == Settings.from_text("").instance
    assert settings.topic("any") == Settings.from_text("").topic("any")
