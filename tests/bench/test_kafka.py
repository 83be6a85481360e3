"""The benchmark's data is as described, and Kafka's cleaner keeps the expected records of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import kafka
from tests.kafka.conftest import kafka_jars as kafka_jars

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.usefixtures("kafka_jars")]
SEGMENT_BYTES = 1 << 20


def logs(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.glob("*.log")}


def test_a_data_set_is_the_same_bytes_each_time_and_kafka_keeps_a_record_a_key(tmp_path: Path) -> None:
    first, second = (
        kafka.generate("a-none", tmp_path / x, 20_000, segment_bytes=SEGMENT_BYTES) for x in "12"
    )
    assert logs(first.partitions[0]) == logs(second.partitions[0])
    assert len(logs(first.partitions[0])) == 3
    assert first.bytes == sum(map(len, logs(first.partitions[0]).values()))
    cleanings = kafka.clean(
        first.partitions[0], tmp_path / "work", repetitions=2, segment_bytes=SEGMENT_BYTES
    )
    assert [c.repetition for c in cleanings] == [1, 2]
    assert {(c.records, c.kept, c.passes, c.source_bytes) for c in cleanings} == {
        (20_000, first.distinct, 1, first.bytes)
    }
    assert 0 < first.distinct < 4_000
    assert logs(first.partitions[0]) == logs(second.partitions[0]), "the source was changed"


def test_a_small_buffer_takes_kafka_more_passes(tmp_path: Path) -> None:
    data = kafka.generate("u-lz4", tmp_path, 20_000, segment_bytes=SEGMENT_BYTES)
    assert data.distinct == 20_000
    (cleaning,) = kafka.clean(
        data.partitions[0],
        tmp_path / "work",
        repetitions=1,
        buffer_bytes=1 << 18,
        segment_bytes=SEGMENT_BYTES,
    )
    assert cleaning.passes >= 2
    assert cleaning.kept == 20_000


def test_four_partitions_share_the_keys(tmp_path: Path) -> None:
    data = kafka.generate("p4-none", tmp_path, 4_000, segment_bytes=SEGMENT_BYTES)
    assert len(data.partitions) == 4
    assert all(any(path.stat().st_size for path in part.glob("*.log")) for part in data.partitions)
