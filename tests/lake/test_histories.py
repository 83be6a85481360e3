"""Random histories of exports, and faults that they must find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lastword.lake import rows as table_rows
from lastword.lake import table
from lastword.lake.export import LivePartition, _Attempt
from lastword.lake.table import Table
from lastword.lake.vectors import Offsets
from lastword.partition import scan
from tests.lake.histories import History, Violation
from tests.support.exhaustive import stride

pytestmark = pytest.mark.slow

HISTORIES, TOGETHER = 400 // stride(10), 10


def counted(place: Path, seeds: Iterable[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        (place / str(seed)).mkdir()
        history = History(seed, place / str(seed))
        history.run()
        counts += history.counts
    return counts


@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_histories(first: int, tmp_path: Path) -> None:
    counts = counted(tmp_path, range(first, first + TOGETHER))
    assert counts["checks"] > 3 * TOGETHER
    assert all(counts[name] for name in ("kills", "conflicts", "vectors"))


@pytest.mark.quick
def test_a_few_histories(tmp_path: Path) -> None:
    """Seed 5 exports after each step, and continues its scans."""
    counts = counted(tmp_path, (0, 2, 5))
    assert counts["checks"] and counts["continued"]


# ---------------------------------------------------------------- planted faults


def found(place: Path, most: int = 40) -> str:
    """Return the text of the first violation; each of these faults is found within a few histories."""
    for seed in range(most):
        try:
            counted(place, [seed])
        except Violation as violation:
            return str(violation)
        except Exception as error:  # a reader that fails has found it, too
            return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{most} histories have not found it")


def test_a_vector_that_is_off_by_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = table_rows.bitmap_of
    monkeypatch.setattr(table_rows, "bitmap_of", lambda numbers: honest(numbers + 1))
    assert found(tmp_path)


def test_a_vector_of_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = Table.commit

    def commit(self: Table, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        given = json.loads(json.dumps(list(actions)))
        adds = [action["add"] for action in given if "add" in action]
        vectors = [add.pop("deletionVector", None) for add in adds]
        for add, vector in zip(adds, vectors[1:] + vectors[:1], strict=True):
            if vector is not None:
                add["deletionVector"] = vector
        return honest(self, version, given)

    monkeypatch.setattr(table.Table, "commit", commit)
    assert found(tmp_path)


def test_a_position_that_is_saved_before_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = Table.commit

    def commit(self: Table, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        given = list(actions)
        if not version:
            return honest(self, version, given)
        positions = [action for action in given if "txn" in action]
        rest = [action for action in given if "txn" not in action]
        return honest(self, version, positions) and honest(self, version + 1, rest)

    monkeypatch.setattr(table.Table, "commit", commit)
    assert found(tmp_path)


def test_an_orphan_that_is_taken_for_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = Table.commit

    def commit(self: Table, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        given = list(actions)
        named = {action["add"]["path"] for action in given if "add" in action}
        for number in range(version):
            named |= {action["add"]["path"] for action in self.actions(number) if "add" in action}
        example = next((action["add"] for action in given if "add" in action), None)
        for facts in self.store.list():
            if facts.key.endswith(".parquet") and "/" not in facts.key and facts.key not in named and example:
                stats = json.dumps({"numRecords": 1})
                given.append({"add": {**example, "path": facts.key, "size": facts.size, "stats": stats}})
        return honest(self, version, given)

    monkeypatch.setattr(table.Table, "commit", commit)
    assert found(tmp_path)


def test_dead_rows_from_the_records_above_the_position_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rows of a partition whose log lost records by a trim stay, if a row dies only by a newer record."""
    honest = _Attempt._txns

    def txns(self: _Attempt, part: Any) -> dict[str, int]:
        changed = honest(self, part)
        return changed if any(not name.endswith("/start") for name in changed) else {}

    monkeypatch.setattr(_Attempt, "_txns", txns)
    assert found(tmp_path)


def test_a_cut_that_is_not_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LivePartition, "since", lambda self, before: 0 if before is None else before.end)
    assert found(tmp_path)


def test_rows_that_a_cleaning_has_removed_without_a_dead_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A segment is not read, though it has fewer live records than the table."""

    class Enough(int):
        def __add__(self, other: int) -> Enough:
            return self

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    monkeypatch.setattr(Offsets, "count", lambda self, first, end: Enough())
    assert found(tmp_path)


def test_an_aborted_record_that_is_taken_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    honest = scan.newest_records
    monkeypatch.setattr(
        scan, "newest_records", lambda *given, **how: honest(*given, **how | {"committed": False})
    )
    assert found(tmp_path)
