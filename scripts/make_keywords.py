"""Write `src/lastword/config/keywords.py` from the tables of settings. A test checks that it is current.

    python scripts/make_keywords.py

Type checkers read a `TypedDict` only as text, so the names cannot be computed when the module is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lastword.config import INSTANCE_SETTINGS, TOPIC_SETTINGS, Setting

TARGET = Path(__file__).parents[1] / "src" / "lastword" / "config" / "keywords.py"

HEAD = '''\
"""Settings as Python keywords, so that type checkers complete the names and report an unknown name.

Written by `scripts/make_keywords.py` from `TopicConfig` and `LogConfig`: do not edit. Values are checked when
they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

Size = int | str
Duration = int | str


class TopicKeywords(TypedDict, total=False):
    """Settings of a topic. None resets a setting to its default."""

'''
MIDDLE = '''

class Keywords(TopicKeywords, total=False):
    """Settings of the directory and of its topics."""

'''


def module() -> str:
    """Return the text of keywords.py."""
    instance = {name: setting for name, setting in INSTANCE_SETTINGS.items() if name not in TOPIC_SETTINGS}
    return HEAD + _fields(TOPIC_SETTINGS) + MIDDLE + _fields(instance)


def _fields(settings: Mapping[str, Setting]) -> str:
    return "".join(f"    {setting.keyword}: {setting.annotation} | None\n" for setting in settings.values())


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
