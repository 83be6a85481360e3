"""Run the declarative pipeline of `examples`: python pipelines_all.py HOME"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["SPARK_REMOTE"] = "local[2]"

import pyarrow.parquet as pq

import lastword

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative" / "towns.py"


def check(home: Path, towns: dict[str, str]) -> None:
    with lastword.open(home / "data") as logs:
        copied = {r.key.decode(): r.value.decode() for r in logs["copied-towns"].newest()}
    rows = pq.read_table(home / "spark-warehouse" / "newest_towns").to_pylist()
    assert {row["name"]: row["town"] for row in rows} == towns == copied, (rows, copied)


def main(home: Path) -> None:
    (home / "pipeline").mkdir()
    (home / "pipeline" / "towns.py").write_text(EXAMPLE.read_text())
    settings = [
        "name: towns",
        f"storage: file://{home}/storage",
        "libraries: [{glob: {include: pipeline/**}}]",
        "configuration:",
        f"  spark.towns.log: {home}/data",
        "  spark.sql.shuffle.partitions: '2'",
    ]
    (home / "pipeline.yml").write_text("\n".join(settings))
    with lastword.open(home / "data", "a") as logs:
        topic = logs.create_topic("towns", cleanup_policy="compact")
        topic.extend([(b"ada", b"Oslo"), (b"ada", b"London"), (b"bob", b"Paris"), (b"eve", None)])
    from pyspark.pipelines import cli

    cli.run(home / "pipeline.yml", full_refresh=[], full_refresh_all=False, refresh=[], dry=False)
    check(home, {"ada": "London", "bob": "Paris"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("everything")
