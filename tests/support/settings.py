"""Change the settings of a topic in one log directory, as `lastword config` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lastword.config import write_topic_settings
from lastword.logdir import LogDirectory
from lastword.segment import names


def set_topic_config(logs: LogDirectory, topic: str, settings: Mapping[str, Any]) -> None:
    write_topic_settings(logs.files, str(Path(logs.path) / names.SETTINGS), topic, settings)
    logs.reload_settings()
