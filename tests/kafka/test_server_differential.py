"""One script of requests to a real broker and to the server: the answers, field by field."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.support.kafka import Tools

MAKE_CONFIGS = Path(__file__).parents[2] / "scripts" / "make_configs.py"


def test_the_table_of_settings_is_that_of_the_jars(tools: Tools) -> None:
    spec = importlib.util.spec_from_file_location("make_configs", MAKE_CONFIGS)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text(encoding="utf-8") == script.text(tools.ask("configs"))
