"""Every state of a partition with every event, against the table in the docstring of `background.states`."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from lastword.background import states
from lastword.background.states import Event, Kind, PartitionState
from lastword.errors import UsageError

KINDS, EVENTS = get_args(Kind), get_args(Event)


def rows() -> dict[str, tuple[set[str], str]]:
    """Return the states from which each event is legal, and the words that say where it leads."""
    table = (states.__doc__ or "").split("event ")[1].split("\n\n")[0].splitlines()[1:]
    found = {}
    for line in table:
        event, sources, target = re.split(r" {2,}", line.strip(), maxsplit=2)
        kinds = set(KINDS) if sources.startswith("each") else set(sources.split(", "))
        found[event] = (kinds, re.sub(r" +\(.*", "", target))
    return found


def expected(kind: str, pauses: int, event: str) -> PartitionState | None:
    sources, target = rows()[event]
    if kind not in sources or (event == "resume" and not pauses):
        return None
    change: Any = {"pause": 1, "resume": -1}.get(event, 0)
    left = pauses + change
    if target == "paused if there are pauses, else idle":
        return PartitionState("paused" if left else "idle", left)
    if target == "itself, one pause more; idle: paused":
        return PartitionState("paused" if kind == "idle" else kind, left)  # type: ignore[arg-type]
    if target == "itself, one pause less; paused without one: idle":
        return PartitionState("idle" if kind == "paused" and not left else kind, left)  # type: ignore[arg-type]
    return PartitionState(target, left)  # type: ignore[arg-type]


def test_the_table_names_all_events() -> None:
    assert set(rows()) == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_transition(kind: Kind, event: Event) -> None:
    legal = {"idle": (0,), "paused": (1, 2)}.get(kind, (0, 1, 2))
    for pauses in legal:
        before = PartitionState(kind, pauses)
        after = expected(kind, pauses, event)
        if after is None:
            with pytest.raises(UsageError, match=kind):
                before.after(event)
        else:
            assert before.after(event) == after
