"""The README's blocks for Spark, as they are printed there."""

import pytest

import lastword
import lastword.spark
from tests.api.test_readme import block, five_minutes

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_the_blocks_run(spark, tmp_path, capsys):
    data, known = tmp_path / "data", {"spark": spark, "lastword": lastword}
    path = {'"data"': repr(str(data))}
    five_minutes(data)
    known["df"] = spark.createDataFrame([("cyd", "1"), ("ada", "2")], "key string, value string")
    exec(block("spark.read.format", **path), known)
    exec(block("changes = ", **path, **{'"checkpoint"': repr(str(tmp_path / "checkpoint"))}), known)
    with lastword.open(data) as logs:
        newest = {record.key: record.offset for record in logs.topic("users").read(view="latest")}
        copied = {record.key for record in logs.topic("copy").read(view="latest")}
    assert newest.keys() == {"ada", "cyd"} and copied == {b"ada", b"cyd"}
    known["sink"] = spark.createDataFrame([*newest.items()], "key string, offset long")
    exec(block("lastword.spark.clean", **path), known)
    told = capsys.readouterr().out.replace(" ", "")
    assert "|strategy|" in told and "|kind|" in told  # what was cleaned, and an audit without a row


def test_spark_shows_the_newest_of_each_key(spark, tmp_path):
    five_minutes(tmp_path / "data")
    frame = spark.read.format("lastword").option("subscribe", "users").option("view", "latest")
    rows = frame.load(str(tmp_path / "data")).collect()
    assert [(bytes(row["key"]), bytes(row["value"])) for row in rows] == [(b"ada", b'{"city":"Turin"}')]
