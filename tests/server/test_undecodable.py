"""Records of the coordinators' topics that cannot be decoded: refused, never answered as unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lastword
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import served
from tests.server.mutated_records import (
    FOUND,
    GROUPS,
    REFUSED,
    TRANSACTIONS,
    Case,
    asked,
    committed,
    mutations,
    transactional,
    write,
)

SEED = int(os.environ.get("LASTWORD_SEED", "31"))
MOST = int(os.environ.get("LASTWORD_MUTATIONS", "12"))
"""Most mutations of each kind."""


def answers_of(directory: Path, cases: list[Case]) -> dict[str, str]:
    """Serve a directory with these partitions, and return the class of each answer."""
    topic = cases[0].topic
    with lastword.open(directory, "a", files=UNSYNCED) as logs:
        logs.create_topic("t", cleanup_policy="delete")
        logs.create_topic(topic, len(cases), cleanup_policy="compact")
    write(directory, topic, [case.records for case in cases])
    with served(directory) as (_, _, client):
        first = asked(client, cases)
        assert asked(client, cases) == first
        return first


@pytest.mark.parametrize("topic", [GROUPS, TRANSACTIONS])
def test_no_mutation_of_a_record_is_answered_as_unknown(topic: str, tmp_path: Path) -> None:
    cases = mutations(topic, SEED, MOST)
    answers = answers_of(tmp_path / "data", cases)
    assert {(case.name, answers[case.name]) for case in cases} == {(case.name, case.right) for case in cases}
    assert {FOUND, REFUSED} <= set(answers.values())


@pytest.mark.slow
@pytest.mark.parametrize("topic", [GROUPS, TRANSACTIONS])
def test_none_of_all_mutations_is_answered_as_unknown(topic: str, tmp_path: Path) -> None:
    cases = mutations(topic, SEED, 1000)
    answers = answers_of(tmp_path / "data", cases)
    assert len(cases) > 80
    assert [case.name for case in cases if answers[case.name] != case.right] == []


@pytest.mark.parametrize("key", [b"", b"\0"])
def test_a_key_without_a_type_refuses_the_groups_of_its_partition(key: bytes, tmp_path: Path) -> None:
    """Trial B3: the groups behind it had no committed offset."""
    case = Case(GROUPS, "short", "g1", ((key, b"x"), committed("g1")), REFUSED)
    assert answers_of(tmp_path / "data", [case]) == {"short": REFUSED}


def test_an_unreadable_open_transaction_gets_no_new_producer_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, value = transactional("x1")
    newer = b"\0M" + value[2:]
    case = Case(TRANSACTIONS, "newer", "x1", (transactional("x1"), (key, newer)), REFUSED)
    assert answers_of(tmp_path / "data", [case]) == {"newer": REFUSED}
    assert f"{TRANSACTIONS}-0 offset 1: " in caplog.text and "77" in caplog.text
    with lastword.open(tmp_path / "data") as logs:
        (problem,) = logs.verify().problems
    assert (problem.code, problem.offset) == ("undecodable-record", 1)


def test_verify_finds_what_a_coordinator_cannot_read(tmp_path: Path) -> None:
    for topic in (GROUPS, TRANSACTIONS):
        cases = mutations(topic, SEED, 3)
        with lastword.open(tmp_path / topic, "a") as logs:
            logs.create_topic(topic, len(cases), cleanup_policy="compact")
        write(tmp_path / topic, topic, [case.records for case in cases])
        with lastword.open(tmp_path / topic) as logs:
            problems = [p for p in logs.verify().problems if p.code == "undecodable-record"]
        found = {Path(problem.file).parent.name for problem in problems}
        odd = [
            f"{topic}-{n}"
            for n, case in enumerate(cases)
            if case.right == REFUSED or case.name.startswith("superseded")
        ]
        assert found == set(odd)
