"""Transactions of both versions while the server is killed; `make kills-server N=500` runs more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.histories import ABORTED, COMMITTED, EITHER, Sent, expected_offsets, problems, run


@pytest.mark.slow
def test_kills_of_the_server(tmp_path: Path) -> None:
    total = run(str(tmp_path / "data"), 5, seed=7)
    assert total.kills == 5
    assert total.transactions[COMMITTED] and total.transactions[ABORTED]


def drop_a_marker() -> None:
    """Plant a fault: the first partition of a transaction gets no marker."""
    from lastword.server.transactions import TransactionCoordinator

    append = TransactionCoordinator._append_markers

    async def append_markers(self: TransactionCoordinator, transaction: Any) -> None:
        stored = transaction.stored
        users = frozenset(at for at in stored.partitions if at != ("users", 0))
        transaction.stored = replace(stored, partitions=users)
        await append(self, transaction)

    TransactionCoordinator._append_markers = append_markers  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_marker_that_is_missing_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"lost|open in users-0"):
        run(str(tmp_path / "data"), 1, seed=3, plant=drop_a_marker)


@pytest.mark.parametrize(
    ("outcome", "read", "problem"),
    [
        (COMMITTED, [b"0-0-0"], "lost"),
        (COMMITTED, [b"0-0-0", b"0-0-1", b"0-0-1"], "twice"),
        (COMMITTED, [b"0-0-1", b"0-0-0"], "out of order"),
        (COMMITTED, [b"0-0-0", b"0-0-1", b"0-0-2"], "never sent"),
        (ABORTED, [b"0-0-0"], "aborted, but read"),
        (EITHER, [b"0-0-1"], "a part"),
        (COMMITTED, [b"0-0-0", b"0-0-1"], None),
        (EITHER, [b"0-0-0", b"0-0-1"], None),
        (EITHER, [], None),
        (ABORTED, [], None),
    ],
)
def test_the_judge(outcome: str, read: list[bytes], problem: str | None) -> None:
    at = ("users", 0)
    found = problems([[Sent(0, {at: [b"0-0-0", b"0-0-1"]}, outcome)]], {at: read})
    assert [text.split(":")[0].partition(" in ")[0].partition(" to ")[0] for text in found][:1] == (
        [] if problem is None else [problem if problem != "a part" else "a part of a transaction"]
    )


def test_the_offsets_that_are_allowed() -> None:
    def sent(*outcomes: str) -> list[Sent]:
        return [Sent(number, {}, outcome) for number, outcome in enumerate(outcomes)]

    assert expected_offsets(sent(COMMITTED, ABORTED, EITHER, ABORTED)) == {0, 2}
    assert expected_offsets(sent(EITHER, COMMITTED, ABORTED)) == {1}
    assert expected_offsets(sent(ABORTED)) == {-1}
