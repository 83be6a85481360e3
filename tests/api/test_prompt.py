"""Results at Python's prompt, and a `LogDir` as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lastword.errors import SerializerError, UnknownTopicError
from lastword.testing import LogBuilder


def test_results_are_shown_one_in_a_line(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").topic("users", 2).put("a", 1).put("b", 1).put("b", 2).open() as logs:
        users = logs.topic("users")
        plans, infos = logs.plan(), users.describe()
        assert repr(plans) == "\n".join(str(plan) for plan in plans) and len(repr(plans)) < 200
        assert plans == logs.plan("users") == list(plans) and repr(logs.expire()) == "[]"
        for results in (infos, users.segments(), logs.clean(), logs.clean("users")):
            assert repr(results).splitlines() == [str(result) for result in results]
        assert "<th>free_bytes</th>" in str(plans._repr_html_())  # type: ignore[attr-defined]  # for notebooks


def test_a_log_dir_is_a_mapping_of_names_to_topics(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").put("a", 1).topic("other").open() as logs:
        assert isinstance(logs, Mapping)
        assert list(logs.keys()) == ["other", "users"] and [topic.name for topic in logs.values()] == [*logs]
        assert {name: list(topic.read())[-1:] for name, topic in logs.items()}["other"] == []
        assert logs.get("none") is None
        with pytest.raises(UnknownTopicError):
            logs["none"]
        assert logs == logs and logs != dict(logs) and len({logs}) == 1


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
