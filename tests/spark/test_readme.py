"""The last line of the README's five-minute example."""

import pytest

from tests.api.test_readme import five_minutes

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_spark_shows_the_newest_of_each_key(spark, tmp_path):
    five_minutes(tmp_path / "data")
    frame = spark.read.format("lastword").option("subscribe", "users").option("view", "latest")
    rows = frame.load(str(tmp_path / "data")).collect()
    assert [(bytes(row["key"]), bytes(row["value"])) for row in rows] == [(b"ada", b'{"city":"Turin"}')]
