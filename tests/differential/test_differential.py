"""Clean random logs by our cleaner, by the cleaner on lists and by Kafka's; `make differential` runs more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lastword.config.tables import STRATEGIES
from tests.differential.compare import Totals, check_ours, clean_ours, compare
from tests.differential.kafka_cleaner import KafkaCleaner
from tests.differential.logs import TOPIC, random_log
from tests.differential.relay import WHO, live
from tests.kafka.conftest import jars_of
from tests.support.exhaustive import stride
from tests.support.jars import KAFKA_VERSION


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCleaner]:
    with KafkaCleaner(jars_of(KAFKA_VERSION)) as cleaner:
        yield cleaner


@pytest.mark.slow
@pytest.mark.kafka
def test_logs_beside_kafkas_own_cleaner(tmp_path: Path, kafka: KafkaCleaner) -> None:
    count = 200
    totals = Totals()
    compare(range(count), tmp_path, kafka, totals)
    assert totals.logs == count and totals.refused < count / 10
    assert totals.modelled + totals.mistaken + totals.wrong == count - totals.refused
    assert totals.mistaken + totals.wrong < count / 20 and totals.kept < totals.records / 2


@pytest.mark.slow
@pytest.mark.kafka
def test_logs_that_are_cleaned_by_both_in_turn(tmp_path: Path, kafka: KafkaCleaner) -> None:
    turns = Counter[str]()
    for seed in range(10):
        turns += live(seed, tmp_path / str(seed), kafka)
    assert min(turns[who] for who in WHO) >= 5 and turns["runs"] > 10


@pytest.mark.slow
def test_logs_beside_the_cleaner_on_lists(tmp_path: Path) -> None:
    totals, count = Totals(), 30 // stride(3)
    compare(range(1000, 1000 + count), tmp_path, None, totals)
    assert totals.logs == count


def test_a_log_is_the_same_each_time() -> None:
    assert random_log(7) == random_log(7) != random_log(8)


def test_the_logs_have_what_they_should() -> None:
    logs = [random_log(seed) for seed in range(60)]
    assert {log.old_formats for log in logs} == {log.transactions for log in logs} == {True, False}
    assert any(base > 1 << 31 for log in logs for part in log.parts for base, _ in part)
    assert any(len(data) > 5000 for log in logs for part in log.parts for _, data in part)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("harm", ["lost", "changed", "turned", "kept"])
def test_harm_is_noticed(tmp_path: Path, harm: str, strategy: str) -> None:
    """The comparison fails on a log whose result is falsified after the cleaning."""
    log = random_log(31)
    story = clean_ours(log, tmp_path / f"{TOPIC}-0", strategy)
    check_ours(log, strategy, story)
    if harm == "kept" and strategy != "kafka":
        pytest.skip("which garbage stays is the strategy's own business")
    first = story.after[-1].segments[0]
    place = next(n for n, batch in enumerate(first.batches) if batch.records)
    record, *others = first.batches[place].records
    older = story.before[0].records[0]
    assert older.offset < record.offset, "the log's first record is superseded"
    instead = {
        "lost": others,
        "changed": [replace(record, timestamp=record.timestamp + 1), *others],
        "turned": [*others, record, record],
        "kept": [older, record, *others],
    }[harm]
    batches = list(first.batches)
    batches[place] = replace(batches[place], records=tuple(instead))
    story.after[-1].segments[0] = replace(first, batches=tuple(batches))
    with pytest.raises(AssertionError, match="log 31"):
        check_ours(log, strategy, story)
