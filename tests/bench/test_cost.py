"""The simulator and the real cleaner agree, and the costs of both are within the promised limits."""

import pytest
from bench.cost_workloads import Scenario, in_kafka, mixed, on_paper, on_real_logs
from bench.traffic import KINDS

from tests.kafka.conftest import kafka_jars as kafka_jars
from tests.support.exhaustive import only_exhaustive, stride

SMALL = {"keys": 1000, "updates": 3, "live_segments": 20}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [*((kind, "generational") for kind in ("uniform", "zipf", "deletes")[:: stride(2)]), ("zipf", "kafka")],
)
def test_real_logs_cost_what_the_simulator_says(tmp_path, kind, strategy):
    scenario = Scenario(kind, **SMALL)
    real = on_real_logs(tmp_path / "logs", [scenario], strategy)
    paper = on_paper([scenario], strategy)
    assert real.written == pytest.approx(paper.written, rel=0.1)
    assert real.peak == pytest.approx(paper.peak, abs=0.1)
    if strategy == "kafka":
        assert real.rounds == paper.rounds
    else:
        assert real.mean == pytest.approx(paper.mean, abs=0.06)


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka_jars")
def test_so_does_kafkas_own_cleaner(tmp_path):
    scenario = Scenario("zipf", keys=4000, updates=4, live_segments=20)
    real = in_kafka(tmp_path / "kafka", scenario)
    paper = on_paper([scenario], "broker")
    assert real.written == pytest.approx(paper.written, rel=0.1)
    assert real.read == pytest.approx(paper.read, rel=0.1)
    assert real.peak == pytest.approx(paper.peak, abs=0.15)
    ours = on_real_logs(tmp_path / "logs", [scenario], "generational")
    assert ours.written < 0.75 * real.written and ours.peak < real.peak - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["insert-only", "ttl"])
def test_nothing_is_written_for_inserts_and_for_keys_that_expire(tmp_path, kind):
    real = on_real_logs(tmp_path / "logs", [Scenario(kind, **SMALL)], "generational")
    assert real.written < 0.002 and real.peak < 1.7  # an empty batch stays for a range without records


def test_sixteen_partitions_are_mixed():
    scenarios = mixed(1000, 4)
    assert len(scenarios) == 16 and {scenario.kind for scenario in scenarios} < set(KINDS)
    assert (
        len({scenario.rate for scenario in scenarios}) == 5
        and len({scenario.keys for scenario in scenarios}) == 3
    )
    for scenario in scenarios:
        assert (scenario.times_ms[1:] >= scenario.times_ms[:-1]).all()
        assert scenario.times_ms[scenario.traffic.loaded - 1] < 1000


@pytest.mark.slow
@only_exhaustive
def test_one_target_for_sixteen_partitions_writes_less_than_one_for_each():
    scenarios = mixed(600, 3)
    together = on_paper(scenarios, "generational")
    kafka = on_paper(scenarios, "broker")
    apart = (
        sum(
            cost.written * cost.appended_bytes
            for cost in (on_paper([scenario], "generational") for scenario in scenarios)
        )
        / together.appended_bytes
    )
    assert together.written < 0.8 * apart and together.written < 0.5 * kafka.written
    assert together.peak < 1.55 and together.worst_end < 2.3
