"""Compare a log with what was delivered: `lastword.spark.audit`.

A lazy DataFrame over the source, planned by Spark. Each log's newest records come without a shuffle; Spark
groups them with the delivered offsets by key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lastword.errors import UsageError
from lastword.spark.targets import BULK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField


def audit(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    delivered: DataFrame,
) -> DataFrame:
    """Compare, per key, the newest delivered offset with the newest logged offset. Lazy.

    Args:
        topic: None: the only topic.
        delivered: Columns `key` (binary, or string as its UTF-8) and `offset`; `partition` if it is known. Of
            a key that is there twice the newest offset counts. A row without a partition counts wherever its
            key is logged. If only one partition is asked for, such a key that is not logged belongs to the
            partition that the topic's partitioner gives.

    Returns:
        A row for each key that is not right, with `kind` as `LogDir.audit` names it.
    """
    import lastword
    from lastword.spark.bootstrap import shared_log
    from lastword.spark.session import need_pyspark

    need_pyspark()
    path = shared_log(path)
    _check_columns(delivered)
    with lastword.open([path]) as logs:
        dirs = logs.dirs
        topic = dirs.only_topic(topic)
        numbers = dirs.select_by_topic(topic, partition)[topic]
        gone_below = {number: dirs.gone_below(topic, number) for number in numbers}
        partitioner = logs.topic(topic).config.lastword_partitioner or "murmur2"
        count = len(dirs.views(topic))
    logged = _logged_offsets(spark, path, topic, numbers)
    keys = _by_key(logged.union(_delivered_offsets(delivered, partition)))
    rows = _wrong_keys(keys, topic, gone_below)
    if partition is None or count == 1 or partitioner not in BULK:
        return rows
    from pyspark.sql import functions as F

    return rows.where(F.col("partition").isNotNull() | (_assigned(partitioner, count) == partition))


def _logged_offsets(spark: SparkSession, path: str, topic: str, numbers: Sequence[int]) -> DataFrame:
    """Return the newest offset of each logged key, and whether it is a tombstone."""
    from pyspark.sql import functions as F

    from lastword.spark.source import load

    schema = "key binary, partition int, offset long, change string"
    changes = load(spark, path, topic, numbers, view="changes", schema=schema)
    return changes.where(F.col("key").isNotNull()).select(
        "key",
        "partition",
        F.col("offset").alias("logged_offset"),
        (F.col("change") == "delete").alias("deleted"),
        F.lit(None).cast("long").alias("delivered_offset"),
    )


def _delivered_offsets(delivered: DataFrame, partition: int | None) -> DataFrame:
    """Return the delivered offsets in the columns of `_logged_offsets`."""
    from pyspark.sql import functions as F

    none = F.lit(None)
    number = F.col("partition") if "partition" in _names(delivered) else none
    rows = delivered.select(
        F.coalesce(F.col("key").cast("binary"), _refused("key")).alias("key"),
        number.cast("int").alias("partition"),
        none.cast("long").alias("logged_offset"),
        none.cast("boolean").alias("deleted"),
        F.coalesce(F.col("offset").cast("long"), _refused("offset")).alias("delivered_offset"),
    )
    if partition is None:
        return rows
    return rows.where(F.col("partition").isNull() | (F.col("partition") == partition))


def _by_key(rows: DataFrame) -> DataFrame:
    """Return one row for each key and partition, with the newest logged and delivered offsets.

    An offset that was delivered without a partition (`anywhere`) counts for each partition where its key is
    logged. It is a row of its own only if the key is logged nowhere.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    number = F.col("partition")
    of_key = Window.partitionBy("key")
    return (
        rows.withColumn("anywhere", F.max(F.when(number.isNull(), F.col("delivered_offset"))).over(of_key))
        .withColumn("is_logged", F.count("logged_offset").over(of_key) > 0)
        .groupBy("key", "partition")
        .agg(
            F.max("logged_offset").alias("logged_offset"),
            F.max("deleted").alias("deleted"),
            F.max("delivered_offset").alias("delivered_offset"),
            F.max("anywhere").alias("anywhere"),
            F.max("is_logged").alias("is_logged"),
        )
        .where(number.isNotNull() | ~F.col("is_logged"))
    )


def _wrong_keys(keys: DataFrame, topic: str, gone_below: dict[int, int]) -> DataFrame:
    """Return the rows of `_by_key` that are not right, with their kind.

    A key of a partition that the topic does not have cannot have been removed from it. A key without a
    partition may have been removed from any.
    """
    from pyspark.sql import functions as F

    number = F.col("partition")
    removed_below = F.when(number.isNull(), F.lit(max(gone_below.values(), default=0))).otherwise(F.lit(0))
    for partition, offset in gone_below.items():
        removed_below = F.when(number == partition, F.lit(offset)).otherwise(removed_below)
    logged, said = F.col("logged_offset"), F.col("delivered_offset")
    delivered = F.when(logged.isNull(), said).otherwise(F.greatest(said, F.col("anywhere")))
    kind = (
        F.when(logged.isNull(), F.when(delivered < removed_below, "gone").otherwise("phantom"))
        .when(delivered.isNull(), F.when(~F.col("deleted"), "missing"))
        .when(delivered < logged, "stale")
        .when(delivered > logged, "phantom")
    )
    columns = (
        F.lit(topic).alias("topic"),
        "partition",
        "key",
        kind.alias("kind"),
        "logged_offset",
        delivered.alias("delivered_offset"),
    )
    return keys.select(*columns).where(F.col("kind").isNotNull())


def _names(delivered: DataFrame) -> dict[str, StructField]:
    return {field.name.lower(): field for field in delivered.schema.fields}


def _check_columns(delivered: DataFrame) -> None:
    """UsageError if the frame has no key and offset, or keys that are no bytes."""
    from pyspark.sql.types import BinaryType, StringType

    if not hasattr(delivered, "schema"):
        raise UsageError(
            f"delivered is {delivered!r}, no DataFrame", remedy="a DataFrame of the columns key and offset"
        )
    names = _names(delivered)
    for name in ("key", "offset"):
        if name not in names:
            raise UsageError(
                f"delivered has no column {name!r}; it has {', '.join(delivered.columns)}",
                remedy="columns key and offset; partition if you know it",
            )
    if not isinstance(names["key"].dataType, BinaryType | StringType):
        raise UsageError(
            f"the column key of delivered is {names['key'].dataType.simpleString()}",
            remedy="keys are bytes: binary, or string as its UTF-8",
        )


def _refused(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.raise_error(F.lit(f"delivered has a row without {column}: leave such rows out"))


def _assigned(partitioner: str, count: int) -> Column:
    """Return the partition that the partitioner gives the key of a row."""
    from pyspark.sql import functions as F

    def partition_of(key: Any) -> int:
        from lastword.api.partitioners import PARTITIONERS

        return PARTITIONERS[partitioner](bytes(key), count)

    return F.udf(partition_of, "int", useArrow=False)("key")
