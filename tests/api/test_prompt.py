"""Results at Python's prompt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastword.errors import SerializerError
from lastword.testing import LogBuilder
from lastword.values import MOST_ROWS

PLANS = """\
PARTITION   SIZE   READ  WRITE  FREES  WHY
users-0    210 B  420 B   79 B  131 B  clean: frees 62 %; rewrites 1 of 1 segment
users-1      0 B      -      -      -  keep: newest, the log is empty
would read 420 B, write 79 B, free 131 B"""
LAST_LINES = (
    "2 partitions, 210 B, 70 B of it garbage",
    "2 segments, 210 B, 70 B of it garbage",
    "3 records, 33 % of them superseded: 70 B",
    "2 leases, the slowest 2 offsets behind",
)


def test_many_results_are_a_table_with_totals(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").topic("users", 2).put("a", 1).put("b", 1).put("b", 2).open() as logs:
        users = logs.topic("users")
        plans = logs.plan()
        assert repr(plans) == str(plans) == PLANS
        assert plans == logs.plan("users") == list(plans) and repr(logs.expire()) == "[]"
        users.lease("slow", position={0: 1})
        tables = users.describe(), users.segments(), logs.duplication(), users.leases()
        assert tuple(repr(table).splitlines()[-1] for table in tables) == LAST_LINES
        assert all(len(repr(table).splitlines()) == len(table) + 2 for table in tables)
        rounds = logs.clean()
        assert repr(rounds).splitlines() == [str(result) for result in rounds]  # a sentence each
        html = str(plans._repr_html_())  # type: ignore[attr-defined]  # for notebooks
        assert "<th>FREES</th>" in html and "<caption>would read 420 B" in html


def test_a_long_table_is_cut_and_its_totals_are_of_all(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").topic("users", 60).put("a", 1).open() as logs:
        plans = logs.plan()
        lines = repr(plans).splitlines()
        assert len(lines) == 1 + MOST_ROWS + 2 and lines[-2] == "... 20 more"
        assert lines[-1].startswith("would read")
        html = str(plans._repr_html_())  # type: ignore[attr-defined]  # for notebooks
        assert html.count("<tr>") == 1 + MOST_ROWS and "; 20 more rows</caption>" in html


def test_a_remedy_names_what_a_serializer_takes(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").open() as logs:
        state = logs.state("users")
        for value in (datetime(2026, 1, 1, tzinfo=UTC), {"at": datetime(2026, 1, 1, tzinfo=UTC)}):
            with pytest.raises(
                SerializerError, match=r"lists and dicts of these; a time as text: value.isoformat"
            ):
                state["a"] = value
        with pytest.raises(SerializerError, match=r"lists and dicts of these$"):
            state["a"] = {1, 2}
