"""`make demo`: write a year of flights as a changelog with Spark, clean it, and restore it twice.

python examples/demo/main.py [URL]

The log is in the directory `demo-output`, or at the URL of a new log in a bucket (`make demo-bucket` runs a
local server for it), which the demo copies to `demo-output` at the end.

Each flight is the newest record of its aircraft. 336,776 rows become 334,264 records over 4,043 keys (the
2,512 rows without an aircraft are cancelled flights). So nearly all of the log becomes garbage; real topics
rarely have as much, but the steps are the same. Takes about a minute; each run starts from an empty
`demo-output`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import flights
import picture

import lastword
from lastword.errors import NotALogDirError
from lastword.units import format_bytes

OUTPUT = Path("demo-output")
DIRECTORY = str(OUTPUT / "log")
TOPIC = "flights"
PARTITIONS = 4
TASKS = 8
QUIET = f"-Dlog4j2.configurationFile={Path(__file__).parents[1] / 'log4j2.properties'}"
STARTED = time.monotonic()


def main(data: str = DIRECTORY) -> int:
    """Run the five steps with the log in a directory, or in a bucket at a URL."""
    import lastword.spark

    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    with suppress(NotALogDirError), lastword.open(data):
        raise SystemExit(f"there is a log at {data}: the demo needs a new URL")

    title(0, "start Spark on this machine")
    with step("Spark session"):
        spark = lastword.spark.session("local[*]", driver_extraJavaOptions=QUIET)
    with step("unpack the flights"):
        rows = flights.table(spark, flights.unpack(OUTPUT))
        named = rows.where("tailnum is not null").cache()
        total, usable = rows.count(), named.count()
    say(f"{total:,} flights; {total - usable:,} without an aircraft are skipped, {usable:,} remain")

    title(1, f"write them through Spark into topic '{TOPIC}', {PARTITIONS} partitions")
    by_time = named.repartitionByRange(TASKS, *flights.ORDER).sortWithinPartitions(*flights.ORDER)
    with step(f"{TASKS} tasks stage, one commit appends"):
        write(flights.as_records(by_time), data)
    say("the rows are sorted by departure, and tasks are appended in Spark's order: so the last record of")
    say("each aircraft is its last flight")

    title(2, "inspect the log")
    before = inspect(data)

    title(3, "plan, clean, certify")
    with step("plan: scan the log and count what a rewrite would keep"):
        plans = lastword.spark.plan(spark, data, TOPIC).collect()
    for row in plans:
        reads = f"{row.action}: {row.segments} segments, read {size(row.read_bytes)}"
        gain = f"write {size(row.write_bytes)}, free {size(row.free_bytes)}"
        say(f"{row.topic}-{row.partition}: {reads}, {gain}")
    with step("clean: one task for each partition"):
        rounds = lastword.spark.clean(spark, data, TOPIC).collect()
    for row in rounds:
        proof = row.certificate
        kept = f"{row.records_read:,} records -> {row.records_kept:,} in {row.seconds:.1f} s"
        say(f"{row.topic}-{row.partition}: {kept}")
        say(f"    certified: keys and offsets {proof.key_offset_digest}, contents {proof.content_digest}")
    say("certified: checksums over keys with offsets, and over contents, equal in source and result")

    title(4, "restore the newest flight of each aircraft, twice, and check both")
    with step("answer from the original table: Spark's max_by, without lastword"):
        truth = {row.key: row.value for row in flights.newest(named).collect()}
    with step("restore with Spark: view=newest"):
        newest = spark.read.format("lastword").option("subscribe", TOPIC).option("view", "newest").load(data)
        rows_left = newest.selectExpr("string(key) key", "string(value) value").collect()
        by_spark = {row.key: row.value for row in rows_left}
    with step("restore with Python: a mapping"), lastword.open(data) as logs:
        by_python = dict(logs.state(TOPIC))
    say(f"{len(truth):,} aircraft in the table; view=newest {len(by_spark):,}, mapping {len(by_python):,}")
    check("view=newest", truth == by_spark)
    check("the mapping", {key: json.loads(value) for key, value in truth.items()} == by_python)
    tail = "N14228"
    say(f"the newest flight of {tail}: {truth[tail]}")

    title(5, "before and after")
    after = inspect(data)
    svg = OUTPUT / "log.svg"
    svg.write_text(picture.draw("Flights out of New York in 2013, keyed by aircraft", before, after))
    was, now = picture.sums(before.values()), picture.sums(after.values())
    say(f"{size(sum(was))} -> {size(sum(now))}, live {size(was[0])} -> {size(now[0])}")
    say(f"picture: {svg}")

    if data != DIRECTORY:
        with step(f"copy {data} to {DIRECTORY}, which opens in Kafka"):
            lastword.copy(data, DIRECTORY)
        with lastword.open(DIRECTORY) as logs:
            check("the copy", by_python == dict(logs.state(TOPIC)))

    spark.stop()
    print(NEXT.format(data=DIRECTORY, seconds=time.monotonic() - STARTED))
    return 0


NEXT = """
done in {seconds:.0f} s. What to try next:

    lastword ls {data} flights --segments
    lastword read {data} flights --key N14228
    lastword verify {data}
    lastword append {data} flights N14228 '{{"departs":"tomorrow"}}'
    lastword clean {data} --dry-run

    python -c "import lastword; print(lastword.open('{data}').state('flights')['N14228'])"
"""


def write(records, data: str) -> None:
    (
        records.write.format("lastword")
        .mode("append")
        .option("topic", TOPIC)
        .option("partitions", PARTITIONS)
        .option("cleanup.policy", "compact")
        .option("segment.bytes", "1MiB")
        .option("lastword.value.serializer", "json")
        .save(data)
    )


def inspect(data: str) -> dict[int, list[picture.Segment]]:
    """Print a line for each partition; return its segments for the picture."""
    segments = {}
    with lastword.open(data) as logs:
        topic = logs.topic(TOPIC)
        for info in topic.describe():
            live = info.live_bytes / info.size_bytes if info.size_bytes else 1.0
            say(
                f"{info.topic}-{info.partition}: {info.segments} segments, {info.records:,} records, "
                f"{size(info.size_bytes)}, {live:.1%} live, {size(info.garbage_bytes)} garbage"
            )
            segments[info.partition] = [
                picture.Segment(
                    segment.base_offset, segment.next_offset, segment.live_bytes, segment.garbage_bytes
                )
                for segment in topic.segments(info.partition)
            ]
    return segments


def check(label: str, right: bool) -> None:
    say(f"{label}: {'equal to the answer from the table' if right else 'DIFFERS'}")
    if not right:
        raise SystemExit(f"{label} differs from the answer that Spark computed from the original table")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the name of a step, and its duration when it ends."""
    started = time.monotonic()
    if sys.stdout.isatty():
        print(f"  {name} ...", end="\r", flush=True)
    yield
    print(f"  {name}: {time.monotonic() - started:.1f} s", flush=True)


def title(number: int, text: str) -> None:
    print(f"\n[{number}/5] {text}", flush=True)


def say(text: str) -> None:
    print(f"    {text}", flush=True)


def size(number: int) -> str:
    return format_bytes(number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
