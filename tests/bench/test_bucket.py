"""The workloads over object storage at a size of seconds, and the limits of a log of many segments."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from bench.bucket_workloads import segment_verbs
from bench.metered_store import MeteredStore

from bench import bucket_server_workloads as measured
from bench import run
from lastword.bucket.commit import Bucket
from tests.support.exhaustive import stride

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("frozen")]


@pytest.mark.parametrize("name", ["bucket", "merge"][:: stride(2)])
def test_each_workload_gives_ratios(tmp_path: Path, name: str) -> None:
    if name == "merge":
        pytest.importorskip("deltalake")
    figures = tmp_path / "figures.json"
    arguments = ["--size", "1000", "--repetitions", "1", "--only", name, "--json", str(figures)]
    assert run.main([*arguments, "--data", str(tmp_path / "data")]) == 0
    results = json.loads(figures.read_text())["results"]
    assert {line["workload"] for line in results} == {name}
    assert all(line["ratio"] > 0 and line["rival_name"] for line in results)


def test_a_server_over_a_bucket_gives_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SECONDS": 0.5,
        "CLIENTS": 10,
        "PRODUCERS": 200,
        "PARTITIONS": 20,
        "COMMITS": 5,
    }.items():
        monkeypatch.setattr(measured, name, value)
    lines = [*measured._latency(0.01), *measured._idle(), *measured._producers()]
    assert {line.unit for line in lines} == {"s", "requests/s", "USD/GB", "KB sent", "requests"}
    assert all(line.ratio > 0 and line.rival_name for line in lines)
    many, few = (line for line in lines if line.unit == "KB sent")
    assert many.rival < many.ours < 1.5 * many.rival and few.ours < 20 * 200 * 46 / 1e3 / 5


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_log_of_many_segments_is_opened_and_planned_with_few_requests_and_bytes(policy: str) -> None:
    splits = pytest.importorskip("lastword.spark.splits")
    options = pytest.importorskip("lastword.spark.options")

    def plan_a_read(store: MeteredStore, view: str) -> None:
        bucket = Bucket(store)
        chosen = options.parse_read({"path": store.url, "subscribe": "t", "view": view})
        assert splits.plan(splits.choose(chosen, bucket.files(bucket.load().snapshot)), chosen)

    reads = {f"plan a read of {view} on Spark": partial(plan_a_read, view=view) for view in ("log", "newest")}
    costs = segment_verbs(100_000 // stride(50), policy, reads)
    usages = {verb: usage for verb, (_, usage) in costs.items()}
    assert usages["append"].writes == 1
    assert usages["append"].sent < 300_000 and usages["append"].received == 0
    for verb in ("open", "open and plan", "plan", "expire", *reads):
        assert usages[verb].reads <= 4 and usages[verb].writes == 0, (verb, usages[verb])
    changed = usages["open and plan after an append"]
    assert changed.reads <= (5 if policy == "compact" else 4), changed  # the garbage index of a partition
