"""Without pyarrow: states, appends of many records, reads, commands, cleaning and the test broker work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
if sys.argv[2] == "without":
    sys.modules["pyarrow"] = None
import confluent_kafka
import lastword
from lastword.cli.main import main
from lastword.errors import MissingError
from lastword.testing import Broker

root = sys.argv[1]
with lastword.open(root, "a", log_cleaner_enable=False) as logs:
    users = logs.create_topic("users", cleanup_policy="compact", segment_bytes=100_000)
    users.extend([(b"%d" % (number % 700), b"%d" % number * 20) for number in range(5000)])
    users.extend([(b"0", None), (b"new", b"last")])
    ages = logs.state("ages")
    ages.update({f"n{number}": number for number in range(5000)})
    ages.incr("n7")
with lastword.open(root, "a", log_cleaner_enable=False) as logs:
    print(sum(logs.state("ages").values()), len(logs.state("users")))
    (cleaned,) = logs.clean("users")
    print(str(cleaned).partition(" in ")[0])
    for view in ("log", "newest", "changes"):
        records = list(logs.topic("users").read(view=view))
        print(view, len(records), hash(repr([(r.offset, r.key, r.value) for r in records])))
    for call in (
        lambda: logs.topic("users").read().arrow(),
        lambda: logs.restore("users", to=root + ".parquet"),
    ):
        try:
            call()
            print("Arrow")
        except MissingError as error:
            print("without:", error.message, "|", error.remedy)
open(root + ".parquet", "a").close()
for arguments in (
    ["ls", root],
    ["read", root, "users", "--last", "3"],
    ["verify", root],
    ["clean", root, "--dry-run"],
    ["audit", root, "users", root + ".parquet"],
):
    try:
        main(arguments)
    except SystemExit as end:
        print(arguments[0], end.code)
with Broker(root + "-kafka") as broker:
    broker.create_topic("users", cleanup_policy="compact")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(2000):
        producer.produce("users", b"%d" % number, b"%d" % (number % 700))
    assert producer.flush(10) == 0
    broker.clean("users")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["users"])
    print("consumed", len(consumer.consume(100, 20)) > 0)
    consumer.close()
"""


def outcome(root: Path, pyarrow: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), pyarrow],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": "0", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.replace(str(root), "ROOT") for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_same_records_and_results(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    without, with_it = outcome(tmp_path / "a", "without"), outcome(tmp_path / "b", "with")
    refused = ['without: Arrow, Parquet or RE2 needs pyarrow | pip install "pyarrow>=16"'] * 2
    assert [line for line in without if line.startswith("without:")] == refused
    assert with_it.count("Arrow") == 2
    codes = dict(line.split() for line in without if re.fullmatch(r"[a-z]+ \d+", line))
    assert codes == {"ls": "0", "read": "0", "verify": "0", "clean": "0", "audit": "7"}
    for text in ("newest ", "changes ", "12497501 700", "users-0: ", "consumed True"):
        (line,) = [line for line in without if line.startswith(text)]
        assert line in with_it
