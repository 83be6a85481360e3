"""Run outside clients and systems against the server and a real Kafka: `make systems ONLY=sarama,kafkajs`.

Each system runs twice on each of the two servers. Between its two lives the server's logs are cleaned and the
directory of its state is removed. The target is compared with a dict, after each life. Own test suites of
clients run once on each server. The results are saved in `results.json`, from which the page is made.
With BUCKET=1 they run on a server of a log in a bucket (moto) instead, beside those results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin

import lastword
from tests.support.jars import KAFKA_VERSION, KafkaJars
from tests.support.kafka import Broker, Tools
from tests.support.stores import moto
from tests.systems import suites
from tests.systems.install import SystemMissing, environment, installed
from tests.systems.page import NAMES, PAGE, RESULTS, compared, is_bucket_different, is_ours, page
from tests.systems.table import ROWS, Suite, System

KEYS = 20
PARTITIONS = 2
SETTINGS = {"cleanup.policy": "compact", "segment.ms": "500", "min.compaction.lag.ms": "0"}
Newest = dict[str, str]


@dataclass
class Server:
    """A server under test, and what cleans its logs."""

    name: str
    address: str
    clean: Callable[[], object]


def fed(
    system: System, address: str, topic: str, first: int, last: int, records: dict[str, list[str]]
) -> None:
    """Append the records with the numbers from `first` to `last` - 1; add them to `records`."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1})
    for number in range(first, last):
        key, value = f"k{number * 7 % KEYS}", f"value {number}"
        is_delete = system.deletes and number % 11 == 0
        producer.produce(topic, None if is_delete else value.encode(), key.encode())
        if is_delete:
            records.pop(key, None)
        else:
            records.setdefault(key, []).append(value)
        producer.poll(0)
    assert producer.flush(30) == 0


def expected(system: System, records: dict[str, list[str]]) -> Newest:
    if system.does == "count":
        return {key: str(len(values)) for key, values in records.items()}
    if system.does == "lines":
        return {value: value for values in records.values() for value in values}
    return {key: values[-1] for key, values in records.items()}


class Target:
    """The newest values of a topic, read as a committed consumer."""

    def __init__(self, address: str, topic: str) -> None:
        settings = {"bootstrap.servers": address, "group.id": "the test", "isolation.level": "read_committed"}
        self._consumer = confluent_kafka.Consumer(settings | {"enable.auto.commit": False})
        kind = confluent_kafka.TopicPartition
        self._consumer.assign([kind(topic, n, confluent_kafka.OFFSET_BEGINNING) for n in range(PARTITIONS)])
        self.newest: Newest = {}

    def becomes(self, wanted: Newest, process: subprocess.Popen[bytes], seconds: float) -> str:
        """Read until the newest values are those that are wanted; return "" or the difference."""
        deadline = time.monotonic() + seconds
        while self.newest != wanted:
            if process.poll() is not None:
                return f"the program ended with {process.returncode}"
            if time.monotonic() > deadline:
                wrong = sorted(k for k in wanted.keys() | self.newest if wanted.get(k) != self.newest.get(k))
                shown = ", ".join(f"{k}: {self.newest.get(k)}, not {wanted.get(k)}" for k in wrong[:3])
                return f"{len(wrong)} of {len(wanted)} keys differ after {seconds:.0f} s ({shown})"
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    key = (message.key() or b"").decode()
                    self.newest.pop(key, None)
                    if message.value() is not None:
                        self.newest[key] = message.value().decode()
        return ""

    def close(self) -> None:
        self._consumer.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a program with its children: by SIGTERM, and after ten seconds by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait()


def lives(system: System, server: Server, other: Server, place: Path, size: int, seconds: float) -> str:
    """Run a system twice on a server; return "" or what differs from the dict."""
    command, env = installed(system)
    word = f"{Path(system.program).stem.replace('_', '-')}-{server.name.split()[0].lower()}"
    source, target = f"{word}-in", f"{word}-out"
    mirrored = system.does == "mirror"
    created(server.address, source, *([] if mirrored else [target]))
    if mirrored:
        target = f"here.{source}"
        created(other.address, target)
    reader = Target(other.address if mirrored else server.address, target)
    records: dict[str, list[str]] = {}
    state, log = place / word, place / f"{word}.log"
    try:
        for life in range(2):
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
            fed(system, server.address, source, life * size // 2, (life + 1) * size // 2, records)
            arguments = [server.address, source, target, f"{word}-group", str(state), other.address]
            with log.open("ab") as out:
                process = subprocess.Popen(
                    [*command, *arguments],
                    stdout=out,
                    stderr=out,
                    env=environment(env),
                    start_new_session=True,
                )
            try:
                difference = reader.becomes(expected(system, records), process, seconds)
                time.sleep(1.0)  # its offsets are committed
            finally:
                ended(process)
            if difference:
                return f"life {life + 1}: {difference}; {last_words(log)}"
            server.clean()
    finally:
        reader.close()
    return ""


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]


def created(address: str, *topics: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    kind = confluent_kafka.admin.NewTopic
    for done in admin.create_topics([kind(name, PARTITIONS, 1, config=SETTINGS) for name in topics]).values():
        done.result(30)


@contextmanager
def servers(root: Path) -> Iterator[tuple[Server, Server]]:
    """Start the server and a real Kafka beside it."""
    kafka_settings = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0"}
    kafka_settings["num.partitions"] = str(PARTITIONS)
    with (
        Tools(KafkaJars.find_or_fetch()) as tools,
        Broker(tools, root / "kafka", kafka_settings) as broker,
        lastword.open(root / "lastword", "a", log_cleaner_enable=False) as logs,
        lastword.serve(logs, "127.0.0.1:0", partitions=PARTITIONS) as server,
    ):
        yield (
            Server("lastword", server.bootstrap_servers, logs.clean),
            Server(f"Kafka {KAFKA_VERSION}", broker.bootstrap, lambda: None),
        )


@contextmanager
def bucket_server(root: Path) -> Iterator[tuple[Server, Server]]:
    """Start a server of a log in a bucket, and one of a directory beside it, the other cluster."""
    quick: Any = {"log_cleaner_enable": False, "lastword_commit_linger_ms": 5}
    with (
        moto() as store,
        lastword.open(f"{store.root}/systems", "a", storage_options=store.options, **quick) as logs,
        lastword.serve(logs, "127.0.0.1:0", partitions=PARTITIONS) as server,
        lastword.open(root / "beside", "a", log_cleaner_enable=False) as other_logs,
        lastword.serve(other_logs, "127.0.0.1:0", partitions=PARTITIONS) as other,
    ):
        yield (
            Server("bucket", server.bootstrap_servers, logs.clean),
            Server("directory", other.bootstrap_servers, other_logs.clean),
        )


def bucket_result(
    row: System | Suite, both: tuple[Server, Server], root: Path, given: argparse.Namespace
) -> Any:
    """Return the result of a row on the server of a log in a bucket."""
    server, other = both
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    if isinstance(row, System):
        difference = lives(row, server, other, root, given.records, given.seconds)
        return {"difference": difference, "records": given.records, "date": date}
    ended = suites.outcomes(row, server.address, root, given.suite_seconds)
    if not ended:
        raise SystemMissing("no test of the suite ended")
    by_outcome = {
        word: sorted(test for test in ended if ended[test] == word) for word in ("failed", "skipped")
    }
    return {"counts": dict(sorted(Counter(ended.values()).items())), "date": date} | by_outcome


def system_result(
    system: System, both: tuple[Server, Server], root: Path, records: int, seconds: float
) -> Any:
    differences = {
        name: lives(system, server, other, root, records, seconds)
        for name, server, other in zip(NAMES, both, both[::-1], strict=True)
    }
    return {"differences": differences, "records": records}


def suite_result(suite: Suite, both: tuple[Server, Server], root: Path, seconds: float) -> Any:
    ended = {
        name: suites.outcomes(suite, server.address, root, seconds)
        for name, server in zip(NAMES, both, strict=True)
    }
    if not ended["Kafka"]:
        raise SystemMissing("no test of the suite ended on Kafka")
    return compared(ended)


def main() -> None:
    """Run systems, save the results and write the page; exit with 1 if one differs on the server only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of systems, separated by commas")
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=180, help="the most for one life")
    parser.add_argument("--suite-seconds", type=float, default=600, help="the most for one run of a suite")
    parser.add_argument("--bucket", action="store_true", help="run on a server of a log in a bucket")
    parser.add_argument("--docs", action="store_true", help="only write the page, from the saved results")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if given.docs:
        PAGE.write_text(page(results), encoding="utf-8")
        return
    wanted = given.only.split(",") if given.only else [row.name for row in ROWS]
    chosen = [row for row in ROWS if row.name in wanted]
    unknown = set(wanted) - {row.name for row in chosen}
    if unknown:
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    started = bucket_server if given.bucket else servers
    with tempfile.TemporaryDirectory(prefix="lastword-systems-") as root, started(Path(root)) as both:
        for row in chosen:
            began = time.monotonic()
            try:
                if given.bucket:
                    result = bucket_result(row, both, Path(root), given)
                elif isinstance(row, System):
                    result = system_result(row, both, Path(root), given.records, given.seconds)
                else:
                    result = suite_result(row, both, Path(root), given.suite_seconds)
            except SystemMissing as missing:
                result = {"missing": str(missing)}
            print(f"{row.name}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
            results = json.loads(RESULTS.read_text(encoding="utf-8"))
            if given.bucket:
                results[row.name]["bucket"] = result
            else:
                result |= {"packages": list(row.packages), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
                results[row.name] = result | {
                    name: of for name, of in results.get(row.name, {}).items() if name == "bucket"
                }
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    is_wrong = is_bucket_different if given.bucket else is_ours
    sys.exit(any(is_wrong(results[row.name]) for row in chosen))


if __name__ == "__main__":
    main()
