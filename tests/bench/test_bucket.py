"""The workloads over object storage at a size of seconds, and the limits of a log of many segments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.bucket_workloads import segment_verbs

from bench import run
from tests.support.exhaustive import stride

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["bucket", "merge"])
def test_each_workload_gives_ratios(tmp_path: Path, name: str) -> None:
    if name == "merge":
        pytest.importorskip("deltalake")
    figures = tmp_path / "figures.json"
    arguments = ["--size", "5000", "--repetitions", "1", "--only", name, "--json", str(figures)]
    assert run.main([*arguments, "--data", str(tmp_path / "data")]) == 0
    results = json.loads(figures.read_text())["results"]
    assert {line["workload"] for line in results} == {name}
    assert all(line["ratio"] > 0 and line["rival_name"] for line in results)


def test_a_log_of_many_segments_is_opened_and_changed_with_few_requests_and_bytes() -> None:
    verbs = segment_verbs(100_000 // stride(50))
    _, opening = verbs["open and plan"]
    assert 2 <= opening.reads <= 4 and opening.writes == 0
    _, append = verbs["append"]
    assert append.writes == 1 and append.sent < 300_000 and append.received == 0
