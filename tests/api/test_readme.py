"""The Python blocks of the README and of four task pages run, and print the output that they show."""

import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from examples.local_s3 import environment_of

import lastword

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


BLOCKS = blocks_of("README.md")
BUCKET_BLOCKS = blocks_of("docs/bucket.md")
TASK_BLOCKS = [*blocks_of("docs/cleaning.md"), *blocks_of("docs/kafka.md"), *blocks_of("docs/server.md")]


def test_the_page_is_short():
    """What takes more room is on a page of its own."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


def of_spark(block):
    return "spark" in block


def test_five_minutes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(BLOCKS[0], {})
    printed = out.getvalue().splitlines()
    assert printed == [
        "{'ada': {'city': 'Turin'}}",
        "0 ada {'city': 'London'}",
        "1 ada {'city': 'Turin'}",
        "2 bob {'city': 'Oslo'}",
        "3 bob None",
        "users-0: 4 records -> 2; the tombstone at 3 may go in 24 h",
    ]
    expected = re.findall(r"print\(.*#\s(.*)", BLOCKS[0])
    assert expected == [printed[0], f"{printed[1]} ... {printed[4]}", printed[5]]


def test_every_block_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """The blocks run in order in one session, then those of the task pages.

    The next test runs Spark's, and tests/testing/test_examples.py those with the fixture `kafka_broker`.
    """
    monkeypatch.chdir(tmp_path)
    session = {}
    needs = ("kafka_broker", "confluent_kafka")  # tested where these are
    blocks = [
        block
        for block in [*(block for block in BLOCKS if not of_spark(block)), *TASK_BLOCKS]
        if not any(name in block for name in needs)
    ]
    assert len(blocks) == 5
    for block in blocks:
        exec(block, session)
    with lastword.open("data") as logs:
        users = logs["users"]
        assert users.last_sequence("loader") == 42 and logs.state("visits")["ada"] == 2
        assert users.leases()[0].position == users.bounds()[0][1] == 9
        assert dict(logs.state("users")) == {"ada": {"city": "Oslo"}, "bob": {"city": "Oslo"}}


@pytest.mark.spark
@pytest.mark.beside
@pytest.mark.usefixtures("short_lived_jvms")
@pytest.mark.xdist_group("spark")
def test_every_block_of_spark_runs_as_it_is_printed(tmp_path, moto):
    """In its own process: the blocks make the Spark session, and its Java keeps its first directory.

    The examples with a bucket find a server of S3 in the environment, as a reader's do.
    """
    pytest.importorskip("pyspark")
    spark_blocks = filter(of_spark, BLOCKS + BUCKET_BLOCKS)
    program = "\n".join([BLOCKS[0], BUCKET_BLOCKS[0], *spark_blocks])
    environment = os.environ | environment_of(moto.address)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with lastword.open(tmp_path / "data") as logs:
        raw = {"key_serializer": "bytes", "value_serializer": "bytes"}
        assert {record.key: record.value for record in logs.topic("users", **raw).read()} == {
            b"ada": b'{"city":"Turin"}',
            b"bob": None,
            b"eve": b'{"city":"Rome"}',
        }
        assert {record.key for record in logs.topic("copy", **raw).read(view="newest")} == {b"ada", b"eve"}


@pytest.mark.slow
def test_the_page_of_buckets_runs_as_it_is_printed(tmp_path, monkeypatch, moto, capsys):
    for name, value in environment_of(moto.address).items():
        monkeypatch.setenv(name, value)
    for block in BUCKET_BLOCKS:
        if not of_spark(block):
            exec(block, {})
            assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*#\s(.*)", block)


def test_quickstart_can_be_run_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", str(tmp_path / "data")])
    for restored in ("restored: {}", "restored: {'ada': {'city': 'Turin'}}"):
        runpy.run_path(str(QUICKSTART), run_name="__main__")
        printed = capsys.readouterr().out
        assert printed.startswith(restored) and "users-0:" in printed and "verified: sound" in printed
