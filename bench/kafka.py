"""Run real Kafka as a rival and as a writer of data: its segment and cleaner classes, no broker.

Both are small Java programs in `java/`, compiled once against the jars of the interoperability tests. Kafka's
own code writes the data sets, with the same bytes each time, so both sides work on the same files.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.jars import HERE as LOGGING
from tests.support.jars import KafkaJars

SOURCES = Path(__file__).parent / "java"
MIB = 1 << 20
#: The flags of a broker in Kafka's own start script.
BROKER_FLAGS = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]


@dataclass(frozen=True)
class DataSet:
    """A pattern of updates: the number of records and keys, the order of keys, and the length of values."""

    records: int
    keys: int
    value_bytes: int
    choice: str
    codec: str = "none"
    partitions: int = 1
    seed: int = 1

    def scaled(self, records: int | None) -> DataSet:
        """Return the same pattern with another number of records, and as many records per key as before."""
        if records is None:
            return self
        keys = max(1, self.keys * records // self.records)
        return DataSet(records, keys, self.value_bytes, self.choice, self.codec, self.partitions, self.seed)


#: a: uniform updates. b: a few keys get most of them. c: values of 1 KiB. u: each key once, so nothing is
#: garbage.
DATA_SETS: dict[str, DataSet] = {
    f"{name}-{codec}": DataSet(records, keys, value_bytes, choice, codec, seed=seed)
    for name, records, keys, value_bytes, choice, seed in (
        ("a", 10_000_000, 2_000_000, 100, "uniform", 1),
        ("b", 10_000_000, 2_000_000, 100, "zipf", 2),
        ("c", 1_000_000, 200_000, 1024, "uniform", 3),
        ("u", 10_000_000, 10_000_000, 100, "once", 4),
    )
    for codec in ("none", "gzip", "snappy", "lz4", "zstd")
} | {"p4-none": DataSet(10_000_000, 2_000_000, 100, "uniform", partitions=4)}


@dataclass(frozen=True)
class Generated:
    """The directories of a data set (`partitions`) and the counts of its writer."""

    name: str
    partitions: tuple[Path, ...]
    records: int
    distinct: int
    bytes: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KafkaCleaning:
    """The cost of one repetition of Kafka's cleaner over one partition.

    `cpu_seconds` counts the whole process. The CPU seconds of the two phases count the cleaner's thread
    alone, without garbage collection and compilation.
    """

    repetition: int
    records: int
    kept: int
    passes: int
    source_bytes: int
    written_bytes: int
    cpu_seconds: float
    wall_seconds: float
    map_cpu_seconds: float
    rewrite_cpu_seconds: float
    map_used_ratio: float


def generate(
    name: str,
    directory: Path,
    n: int | None = None,
    *,
    batch_bytes: int = 16 << 10,
    segment_bytes: int = 128 * MIB,
) -> Generated:
    """Write data set `name` with `n` records below `directory`, or return the one of an earlier run."""
    data = DATA_SETS[name].scaled(n)
    target = directory / f"{name}-{data.records}-{segment_bytes}"
    facts_file = target / "facts.json"
    if not facts_file.exists():
        target.mkdir(parents=True, exist_ok=True)
        arguments = [target, name, data.partitions, data.records, data.keys, data.value_bytes, data.choice]
        arguments += [data.codec, batch_bytes, segment_bytes, data.seed]
        facts_file.write_text(run_java("SegmentWriter", arguments)[0])
    facts = json.loads(facts_file.read_text())
    return Generated(
        name,
        tuple(target / f"{name}-{number}" for number in range(data.partitions)),
        facts["records"],
        facts["distinct"],
        facts["bytes"],
        facts,
    )


def clean(
    partition: Path,
    work: Path,
    *,
    repetitions: int = 4,
    buffer_bytes: int = 128 * MIB,
    segment_bytes: int = 128 * MIB,
    keep: bool = False,
) -> list[KafkaCleaning]:
    """Run Kafka's cleaner on a copy of `partition` below `work`; the first repetition runs in a cold JVM."""
    arguments = [partition, work, repetitions, buffer_bytes, segment_bytes, *(["keep"] if keep else [])]
    return [KafkaCleaning(**json.loads(line)) for line in run_java("CleanerRun", arguments)]


def read(partition: Path, how: str, repetitions: int = 4) -> list[dict[str, Any]]:
    """Read `partition` with Kafka's record classes; `how` is "scan" or "restore" (into a HashMap)."""
    return [json.loads(line) for line in run_java("ReadRun", [partition, repetitions, how])]


def lookups(
    partition: Path, work: Path, how: str, count: int, repetitions: int = 4, *, segment_bytes: int = 128 * MIB
) -> list[dict[str, Any]]:
    """Look up `count` random offsets of `partition` with Kafka's segment class.

    `how` is "index" (positions) or "record" (records).
    """
    arguments = [partition, work, repetitions, how, count, segment_bytes]
    return [json.loads(line) for line in run_java("LookupRun", arguments)]


def open_log(
    partition: Path, work: Path, how: str, repetitions: int = 4, *, segment_bytes: int = 128 * MIB
) -> list[dict[str, Any]]:
    """Open a copy of `partition` with Kafka's log class; `how` is its state, "clean" or "killed"."""
    arguments = [partition, work, repetitions, how, segment_bytes]
    return [json.loads(line) for line in run_java("OpenRun", arguments)]


def first_open(partition: Path, work: Path, *, segment_bytes: int = 128 * MIB) -> float:
    """Return wall seconds from the start of a Java process until Kafka's log class has opened a killed log.

    The log is a copy of `partition`. A broker does more work before it answers.
    """
    command = _command("OpenRun", [partition, work, 1, "killed", segment_bytes])
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        opened = any(line.startswith("{") for line in process.stdout)
        took = time.perf_counter() - began
    if not opened or process.returncode:
        raise RuntimeError(f"OpenRun ended with {process.returncode}")
    return took


def append(
    work: Path, records: int, records_per_batch: int, codec: str, repetitions: int = 4
) -> list[dict[str, Any]]:
    """Run Kafka's batch builder and log layer in one process, with records of 124 bytes."""
    return [
        json.loads(line)
        for line in run_java("AppendRun", [work, repetitions, records, records_per_batch, codec])
    ]


def _command(program: str, arguments: list[Any]) -> list[str]:
    jars = KafkaJars.find_or_fetch()
    command = [jars.java, "-Xms1g", "-Xmx4g", *BROKER_FLAGS]
    command += [f"-Dlog4j2.configurationFile={LOGGING / 'log4j2.xml'}", "-Dlastword.log=/dev/null"]
    return [*command, "-cp", jars.compiled(SOURCES), program, *map(str, arguments)]


def run_java(program: str, arguments: list[Any]) -> list[str]:
    done = subprocess.run(_command(program, arguments), capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{program} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return lines
