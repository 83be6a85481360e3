from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.systems.page import (
    PAGE,
    RESULTS,
    compared,
    failed_in_bucket,
    is_bucket_different,
    is_ours,
    page,
)
from tests.systems.suites import of_go, of_pytest
from tests.systems.table import ROWS, SUITES, SYSTEMS


def saved() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def test_the_page_is_made_from_the_saved_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(saved()), "run python -m tests.systems.run --docs"


def test_each_row_has_a_result_of_the_versions_in_the_table() -> None:
    results = saved()
    assert results.keys() == {row.name for row in ROWS}
    assert {name: tuple(result["packages"]) for name, result in results.items()} == {
        row.name: row.packages for row in ROWS
    }, "run make systems ONLY=NAME"


def test_a_row_without_a_result_is_on_the_page() -> None:
    assert page({}).count("not run: no run yet") == len(SYSTEMS) + len(SUITES)


@pytest.mark.parametrize(
    ("ours", "kafkas", "only_ours", "only_kafkas", "both"),
    [
        ({"a": "passed", "b": "failed"}, {"a": "passed", "b": "failed"}, [], [], ["b"]),
        ({"a": "failed"}, {"a": "passed"}, ["a"], [], []),
        ({"a": "passed"}, {"a": "failed"}, [], ["a"], []),
        ({}, {"a": "passed"}, ["a"], [], []),
        ({"a": "skipped"}, {"a": "passed"}, [], [], []),
    ],
)
def test_a_suite_differs_in_the_tests_that_fail_on_one_server(
    ours: dict[str, str],
    kafkas: dict[str, str],
    only_ours: list[str],
    only_kafkas: list[str],
    both: list[str],
) -> None:
    result = compared({"lastword": ours, "Kafka": kafkas})
    assert result["only"] == {"lastword": only_ours, "Kafka": only_kafkas}
    assert result["both"] == both
    assert result["skipped"] == (["a"] if ours == {"a": "skipped"} else [])
    assert is_ours(result) == bool(only_ours)


def test_a_difference_on_both_servers_is_not_ours() -> None:
    assert is_ours({"differences": {"lastword": "wrong", "Kafka": ""}})
    assert not is_ours({"differences": {"lastword": "wrong", "Kafka": "wrong"}})
    assert not is_ours({"missing": "no cargo"})


def test_outcomes_of_pytest_are_read_from_its_report(tmp_path: Path) -> None:
    cases = [
        '<testcase classname="tests.a.T" name="right"/>',
        '<testcase classname="test.b" name="wrong"><failure/></testcase>',
        '<testcase classname="test.b" name="broken"><error/></testcase>',
        '<testcase classname="test.b" name="left"><skipped/></testcase>',
    ]
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    expected = {"a.T.right": "passed", "b.wrong": "failed", "b.broken": "failed", "b.left": "skipped"}
    assert of_pytest(tmp_path / "report") == expected
    assert of_pytest(tmp_path / "none") == {}


def test_outcomes_of_go_are_read_from_its_output(tmp_path: Path) -> None:
    lines = ["--- FAIL: TestA (0.1s)", "    --- PASS: TestA/sub (0.0s)", "--- SKIP: TestB (0.0s)", "PASS"]
    (tmp_path / "report.log").write_text("\n".join(lines))
    assert of_go(tmp_path / "report") == {"TestA": "failed", "TestA/sub": "passed", "TestB": "skipped"}


@pytest.mark.parametrize(
    ("bucket", "shown"),
    [
        ({"counts": {"failed": 1, "passed": 2}, "failed": ["b"]}, []),
        ({"counts": {"failed": 2, "passed": 1}, "failed": ["a", "b"]}, ["a"]),
        ({"counts": {"failed": 1, "passed": 1}, "failed": ["b"]}, ["1 did not end"]),
    ],
)
def test_a_run_over_a_bucket_differs_in_tests_that_pass_over_a_directory(
    bucket: dict[str, Any], shown: list[str]
) -> None:
    outcomes = {"a": "passed", "b": "failed", "c": "passed"}
    result = compared({"lastword": outcomes, "Kafka": outcomes})
    assert failed_in_bucket(result) == []
    assert failed_in_bucket(result | {"bucket": bucket}) == shown
    assert is_bucket_different(result | {"bucket": bucket}) == bool(shown)
    differences = {"lastword": "", "Kafka": ""}
    assert is_bucket_different({"differences": differences, "bucket": {"difference": "wrong"}})
    assert not is_bucket_different({"differences": differences, "bucket": {"difference": ""}})
