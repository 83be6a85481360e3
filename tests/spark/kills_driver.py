"""A whole Spark driver that writes and cleans in turn, until it is killed: python kills_driver.py ROOT NOTES

Each batch has its own name (producer, sequence). The driver notes the batch after the write, so after a
kill the last batch may be written again. At the end each batch is in the log once, and the log is clean.
"""

from __future__ import annotations

import sys
from pathlib import Path

BATCHES = 24


def pairs(batch: int) -> list[tuple[str, str]]:
    return [(f"key-{n % 50}", f"{batch}/{n}") for n in range(batch * 13, batch * 13 + 120)]


def main(root: str, notes: Path) -> None:
    import lastword.spark
    from tests.spark.conftest import FOR_TESTS

    conf = dict(FOR_TESTS)
    spark = lastword.spark.session(conf.pop("spark.master"), **conf)
    spark.sparkContext.setLogLevel("OFF")
    spark.range(10).count()
    print("ready", flush=True)
    for batch in range(int(notes.read_text()) if notes.exists() else 0, BATCHES):
        frame = spark.createDataFrame(pairs(batch), "key string, value string").coalesce(1)
        (
            frame.write.format("lastword")
            .mode("append")
            .options(topic="t", producer="p", sequence=str(batch))
            .save(root)
        )
        notes.with_suffix(".new").write_text(str(batch + 1))
        notes.with_suffix(".new").replace(notes)
        if batch % 3 == 2:
            lastword.spark.clean(spark, root, task_bytes=1 if batch % 2 else 1 << 30)
    lastword.spark.clean(spark, root)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
