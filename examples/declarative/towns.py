"""A declarative pipeline of Spark 4.3: a table of newest values, and a stream into another topic.

`spark-pipelines run` executes it, with this file in the folder `pipeline` beside pipeline.yml:

    name: towns
    storage: file:///srv/pipeline
    libraries: [{glob: {include: pipeline/**}}]
    configuration: {spark.towns.log: /srv/data}
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
LOG = spark.conf.get("spark.towns.log")


@dp.materialized_view
def newest_towns() -> Any:
    newest = spark.read.format("lastword").options(subscribe="towns", view="newest").load(LOG)
    return newest.selectExpr("CAST(key AS STRING) AS name", "CAST(value AS STRING) AS town")


@dp.temporary_view
def town_changes() -> Any:
    options = {"subscribe": "towns", "view": "changes", "startingOffsets": "earliest"}
    return spark.readStream.format("lastword").options(**options).load(LOG)


dp.create_sink("copied_towns", "lastword", {"path": str(LOG), "topic": "copied-towns"})


@dp.append_flow(target="copied_towns")
def copied() -> Any:
    return spark.readStream.table("town_changes").select("key", "value")
