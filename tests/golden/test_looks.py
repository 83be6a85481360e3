"""`explain` and `duplication` on directories that Kafka wrote: all magics, codecs, and transactions."""

import pytest

import lastword
from tests.golden.loader import case, names
from tests.support.exhaustive import stride

CASES = [name for pattern in ("compact-*", "v0*", "v1*", "*txn*") for name in names(pattern)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES))[:: stride(3)])
def test_every_record_is_explained_and_counted(name, tmp_path):
    golden_case = case(name)
    for stage in golden_case.stages:
        root = golden_case.unpack(tmp_path, stage) / stage
        with lastword.open(root) as logs:
            for topic in logs.topics():
                topic = logs.topic(topic.name, key_serializer="bytes", value_serializer="bytes")
                for row in logs.duplication(topic.name):
                    records = list(topic.read(partition=row.partition, isolation="read_uncommitted"))
                    assert row.records >= len(records)  # records below the log start are still on disk
                    for key in sorted({record.key for record in records if record.key is not None})[:3]:
                        explanation = logs.explain(topic.name, row.partition, key=key)
                        expected = [record.offset for record in records if record.key == key]
                        assert [version.offset for version in explanation.versions] == expected
                        newest = [
                            version for version in explanation.versions if version.superseded_by is None
                        ]
                        assert newest and all(version.text for version in explanation.versions)
