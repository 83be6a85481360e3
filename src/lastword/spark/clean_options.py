"""The options of `clean` and `plan`, apart: `clean` imports `cleaning`, which needs them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from lastword.values import ProgressLike

TASK_BYTES = 1 << 30
"""A partition with more bytes than this below its limit is divided over tasks. Up to this size, one task is
fast enough, and it needs no scratch files.
"""


class CleanOptions(TypedDict, total=False):
    """The options of `clean` and of `plan`, which describes none of them again."""

    due: bool
    strategy: str | None
    scratch: str | None
    task_bytes: int
    progress: ProgressLike | None
    storage_options: Mapping[str, str] | None


DEFAULTS = CleanOptions(
    due=False, strategy=None, scratch=None, task_bytes=TASK_BYTES, progress=None, storage_options=None
)
