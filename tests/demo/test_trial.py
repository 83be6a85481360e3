"""Check `lastword demo`: it names the value that Kafka's rule loses; lastword's strategies lose none."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from lastword.cli import main
from lastword.cli.command import session
from lastword.config.tables import STRATEGIES
from lastword.demo import trial
from tests.support.exhaustive import only_exhaustive

UPDATES = 2_000
COMMON = {"quiet": True, "verbose": False, "progress": None, "color": "never", "config": None}


def ran(path: Path, *, json_: bool = True) -> str:
    caught = io.StringIO()
    with redirect_stdout(caught):
        trial.run_demo(session(json=json_, **COMMON), str(path), UPDATES)
    return caught.getvalue()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return [json.loads(line) for line in ran(tmp_path_factory.mktemp("demo")).splitlines()]


@pytest.mark.slow
def test_every_rule_stands_beside_kafkas(rows: list[dict]) -> None:
    rules = {row["rule"]: row for row in rows if row["type"] == "rule"}
    assert list(rules) == [trial.KAFKA, *(f"lastword, {name}" for name in STRATEGIES)]
    kafka = rules.pop(trial.KAFKA)
    assert (kafka["rounds"], kafka["lost"]) == (4, 1)
    for row in rules.values():
        assert row["lost"] == 0 and row["kept"] == kafka["kept"] + 1
        assert row["written_bytes"] > 0 and row["read_bytes"] > 0
    assert rows[-1]["type"] == "summary" and rows[-1]["ok"]


@pytest.mark.slow
def test_the_value_that_kafka_loses_is_named(rows: list[dict]) -> None:
    (lost,) = [row for row in rows if row["type"] == "lost"]
    assert lost["rule"] == trial.KAFKA and {lost["key"], lost["twin"]} == set(trial.TWINS)
    assert lost["offset"] == UPDATES // 10 and lost["value"].endswith(f"update {UPDATES // 10}")


@pytest.mark.slow
def test_the_table(tmp_path: Path) -> None:
    lines = ran(tmp_path, json_=False).splitlines()
    assert lines[0].split() == ["RULE", "ROUNDS", "READ", "WRITTEN", "KEPT", "LOST"]
    assert sum(line.startswith("lost by kafka's rule") for line in lines) == 1
    assert sum(twin in line for twin in trial.TWINS for line in lines) == 2


@pytest.mark.slow
def test_what_is_kept_is_the_values_and_the_tombstones(rows: list[dict]) -> None:
    history = trial.History(UPDATES)
    for row in rows:
        if row["type"] == "rule" and row["rule"] != trial.KAFKA:
            assert row["kept"] == len(history.newest) + history.deleted and history.deleted > 0


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert main.run(["demo", "--keep", str(tmp_path), "-q"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_history_is_as_told() -> None:
    history = trial.History(UPDATES)
    assert [len(quarter) for quarter in history.quarters] == [UPDATES // 4] * 4
    first, second = history.quarters[:2]
    assert [key in dict(first) for key in trial.TWINS] == [True, False]
    assert [key in dict(second) for key in trial.TWINS] == [False, True]
    assert any(value is None for _, value in second)
    assert set(trial.TWINS) <= set(history.newest)


@pytest.mark.slow
@only_exhaustive
def test_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """At the demonstration's real size."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = readme.split("$ lastword demo ")[1].split("```")[0].splitlines()[1:]
    assert main.run(["demo", "-q", "--no-progress"]) == 0
    assert shown and capsys.readouterr().out.splitlines()[: len(shown)] == shown
