"""Spark with Delta Lake, as a server of Spark Connect: another reader and writer of exported tables.

No release of Delta runs on the Spark of our tests. So Maven fetches the newest Delta and its Spark, once,
into the user's cache, and PySpark of this environment is a client of that server.
"""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.jars import HERE, KafkaMissing, archive_for, cache_directory, find_java
from tests.support.stores import ServerMissing, fetch, free_port, process, wait_for

DELTA = "4.4.0"
SPARK = "4.2.0"
START_SECONDS = 600  # it takes about 13 s of CPU, and half of it with an archive of its classes
STOP_SECONDS = 120  # the first one writes the archive
LEVELS = Path(__file__).parents[2] / "examples" / "log4j2.properties"
# The packages that Spark's own scripts open: Java 17 keeps them closed.
OPENED = ("lang", "lang.invoke", "io", "net", "nio", "util", "util.concurrent", "util.concurrent.atomic")
SETTINGS = {
    "spark.app.name": "delta",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # a test removes files of this minute
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.master": "local[1]",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # compiling takes longer than some rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",  # VACUUM starts so many tasks: 10,000
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


OF_TESTS = (
    "spark.sql.adaptive.enabled",
    "spark.sql.codegen.factoryMode",
    "spark.sql.codegen.wholeStage",
    "spark.sql.shuffle.partitions",
)


@contextmanager
def delta_server(folder: Path, *, for_tests: bool = True) -> Iterator[str]:
    """Run the server in a new folder. Yield its address, for `connect`.

    `for_tests`: made for a few rows. False: with the settings of Spark and of Java for many, on two cores.

    Raises:
        ServerMissing: There is no Java or no Maven, or Maven Central cannot be reached.
    """
    try:
        java = find_java()
    except KafkaMissing as missing:
        raise ServerMissing(str(missing)) from None
    jars = cache_directory() / f"delta-{DELTA}-spark-{SPARK}"
    if not jars.exists():
        maven = shutil.which("mvn")
        if not maven:
            raise ServerMissing("no Maven to fetch Delta with: apt-get install maven")
        versions = [f"-Dspark.version={SPARK}", f"-Dspark.line={SPARK[:3]}", f"-Ddelta.version={DELTA}"]
        command = [maven, "-B", "-q", "-f", str(HERE / "delta_pom.xml"), *versions]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        fetch(jars, lambda private: [*command, f"-DoutputDirectory={private}"])
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        **{name: value for name, value in SETTINGS.items() if for_tests or name not in OF_TESTS},
        **({} if for_tests else {"spark.master": "local[2]"}),
        "log4j2.configurationFile": str(LEVELS),
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    opened = [*(f"java.{name}" for name in OPENED), "sun.nio.ch", "sun.nio.cs", "sun.util.calendar"]
    options = ["-Xmx1g", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    if not for_tests:
        options = ["-Xmx4g", "-Xss4m"]
    options += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opened]
    options += [f"-D{name}={value}" for name, value in settings.items()]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    log, archive = folder / "server.log", archive_for(java, jars.name)
    unfinished = archive.with_name(f"{archive.name}.{port}")
    if for_tests:
        is_made = archive.exists()
        options += [
            f"-XX:SharedArchiveFile={archive}" if is_made else f"-XX:ArchiveClassesAtExit={unfinished}"
        ]
    with process([java, *options, "-cp", f"{jars}/*", main], log, STOP_SECONDS) as server:
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), log, START_SECONDS)
        yield f"sc://127.0.0.1:{port}"
    if unfinished.exists():
        if server.returncode == -signal.SIGKILL:
            unfinished.unlink()
        else:
            unfinished.replace(archive)


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """Yield a session of the server, and end it: one that is open keeps its process for minutes."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(address).create()
    try:
        yield session
    finally:
        session.stop()


def rows_at(session: Any, table: str, versions: list[int]) -> dict[int, list[tuple[int, int, Any, Any]]]:
    """Return partition, offset, key and value of each row at versions of the table in a directory."""
    queries = [
        f"SELECT {version} AS version, partition, offset, key, value "
        f"FROM delta.`{table}` VERSION AS OF {version}"
        for version in versions
    ]
    found: dict[int, list[tuple[int, int, Any, Any]]] = {version: [] for version in versions}
    for version, *row in session.sql(" UNION ALL ".join(queries)).collect():
        found[version].append(tuple(row))
    return found
