"""Every store keeps the promises of the interface."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lastword.objects import open_store
from tests.objects.conformance import CHECKS, Check

NAMES = itertools.count()
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
@pytest.mark.parametrize("prefix", ["", "/some/prefix"], ids=["root", "prefix"])
def test_memory(check: Check, prefix: str, tmp_path: Path) -> None:
    with open_store(f"memory://conformance-{next(NAMES)}{prefix}") as store:
        check(store, tmp_path)
