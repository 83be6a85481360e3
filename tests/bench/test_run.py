"""`make bench` at a size that takes seconds: every workload prints a ratio and leaves no files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.registry import WORKLOADS, rate

from bench import run
from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.support.exhaustive import stride

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka")]
LOCAL = (
    "growth",
    "append",
    "scan",
    "map",
    "rewrite",
    "clean",
    "clean-map",
    "clean-accounts",
    "clean-size",
    "restore",
)
STORAGE = ("batches", "pairs", "objects", "lookup", "open", "recover", "partitions")


@pytest.mark.parametrize(
    "names",
    [LOCAL[:: stride(5)], STORAGE[:: stride(4)], ("drives",), ("server",)],
    ids=["cleaning", "storage", "drives", "server"],
)
@pytest.mark.usefixtures("kafka_jars")
def test_every_local_workload_gives_a_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    arguments = ["--size", "20000", "--repetitions", "1", "--sets", "a-none", "--only", ",".join(names)]
    figures = tmp_path / "figures.json"
    assert run.main([*arguments, "--json", str(figures), "--data", str(tmp_path / "data")]) == 0
    results = json.loads(figures.read_text())["results"]
    assert {line["workload"] for line in results} == set(names)
    assert all(line["ratio"] > 0 and line["rival_name"] for line in results)
    assert not list((tmp_path / "data").glob("scratch-*"))
    assert names[-1] in capsys.readouterr().out


def test_a_run_shorter_than_a_tick_of_the_rivals_clock_has_a_rate() -> None:
    assert rate(1000, [0.0, 0.0]) == 0.1
    assert rate(1000, [0.5, 0.0, 0.25]) == 0.004


def test_an_unknown_workload_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "polish"]) == 2
    assert "scan" in capsys.readouterr().err


def test_the_list_says_what_each_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(WORKLOADS) >= len(LOCAL) + len(STORAGE)
    assert all(len(line.split(None, 1)) == 2 for line in lines)
