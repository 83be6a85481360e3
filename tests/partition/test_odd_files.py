"""Files beside the segments that no writer of ours leaves: an opening or a read does not fail for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
from lastword.errors import CorruptFileError, NotAPartitionError
from lastword.segment import names


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", 2, cleanup_policy="compact")
        for number in range(4):
            topic.append(b"k", b"%d" % number, partition=number % 2)
    return tmp_path / "data"


@pytest.mark.parametrize("text", ["", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "version: 0\n"])
def test_a_damaged_topic_id_stops_no_read(data: Path, text: str) -> None:
    """A power cut leaves an empty file (KAFKA-16814); a read needs no topic id."""
    (data / "t-1" / names.PARTITION_METADATA).write_text(text)
    with lastword.open(data) as logs:
        assert [found.value for found in logs.topic("t").read()] == [b"0", b"2", b"1", b"3"]
        assert {problem.code for problem in logs.verify().problems} == {"bad-properties"}
    with lastword.open(data, "a", log_cleaner_enable=False) as logs, pytest.raises(CorruptFileError):
        logs.topic("t").append(b"k", b"5", partition=1)


@pytest.mark.parametrize("content", [b"", b"no snapshot"])
def test_a_snapshot_with_the_suffix_of_a_swap(data: Path, content: bytes) -> None:
    """It ended the opening with a ValueError. Kafka gives it its final name."""
    (data / "t-0" / f"{1:020}.snapshot.swap").write_bytes(content)
    for _ in range(2):
        with lastword.open(data, "a", log_cleaner_enable=False) as logs:
            assert logs.topic("t").append(b"k", b"5", partition=0).offset >= 2
    assert not list((data / "t-0").glob("*.swap"))


def test_a_link_in_the_place_of_the_private_directory(data: Path, tmp_path: Path) -> None:
    """What was written below it was written elsewhere."""
    private, elsewhere = data / "t-0" / names.PRIVATE, tmp_path / "elsewhere"
    private.rename(elsewhere)
    private.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.iterdir() if path.is_file()}
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        with pytest.raises(NotAPartitionError, match="symbolic link"):
            logs.topic("t").append(b"k", b"5", partition=0)
        logs.topic("t").append(b"k", b"5", partition=1)
    assert {path: path.read_bytes() for path in elsewhere.iterdir() if path.is_file()} == before


def test_a_header_name_that_is_not_utf8(data: Path) -> None:
    """`read --json` printed half of a surrogate pair, which strict parsers refuse."""
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        logs.topic("t").append(b"k", b"v", headers=[(name, b"x"), ("plain", None)], partition=0)
    command = [sys.executable, "-m", "lastword"]
    read = [*command, "read", str(data), "t", "--json"]
    lines = subprocess.run(read, capture_output=True, check=True).stdout
    rows = [json.loads(line) for line in lines.decode().splitlines()]
    assert [[{"base64": "//4="}, "x"], ["plain", None]] in [row.get("headers") for row in rows]
    append = [*command, "append", str(data), "t", "--json"]
    subprocess.run(append, input=lines, check=True, capture_output=True)
    with lastword.open(data) as logs:
        assert [found.headers for found in logs.topic("t").read()].count(((name, b"x"), ("plain", None))) == 2
