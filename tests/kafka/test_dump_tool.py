"""Kafka's dump tool reads logs that lastword wrote and cleaned, in all codecs, and reports no fault."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lastword
from tests.golden.loader import partition_files
from tests.kafka import traffic
from tests.support.kafka import Tools, complaints

TOPICS = {**{codec: codec for codec in traffic.CODECS}, "append-time": "lz4"}  # and their codecs
STAGES = ("written", "cleaned", "cleaned-twice")
RECORDS = 1500
KEYS = 80


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the closed log directory at each stage; each topic has one codec."""
    root = tmp_path_factory.mktemp("dump")
    directory = root / "logs"
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        for seed, (name, codec) in enumerate(TOPICS.items()):
            topic = logs.create_topic(
                name,
                cleanup_policy="compact",
                compression_type="uncompressed" if codec == "none" else codec,
                segment_bytes=16 << 10,
                index_interval_bytes=1024,
                delete_retention_ms=0,
                file_delete_delay_ms=0,
                message_timestamp_type="LogAppendTime" if name == "append-time" else "CreateTime",
            )
            traffic.append_all(topic, traffic.updates(RECORDS, KEYS, seed))
    shutil.copytree(directory, root / "written")
    for later in STAGES[1:]:
        with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
            logs.clean()
        shutil.copytree(directory, root / later)
    return lambda name: root / name


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("name", STAGES)
def test_every_batch_and_record(name: str, topic: str, stage: Callable[[str], Path], tools: Tools) -> None:
    partition = stage(name) / f"{topic}-0"
    printed = tools.dump_log(partition_files(partition), "--deep-iteration", "--print-data-log")
    assert complaints(printed) == []
    codecs = set(re.findall(r"compresscodec: (\w+)", printed))
    codec = TOPICS[topic]
    assert codec in codecs and codecs <= {codec, "none"}  # an emptied batch is never compressed
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    with lastword.open(stage(name)) as logs:
        assert offsets == [record.offset for record in logs.topic(topic).read()]
    if name == "written":
        assert offsets == list(range(RECORDS))
    else:
        assert len(offsets) <= KEYS


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("check", [(), ("--index-sanity-check",), ("--verify-index-only",)], ids=" ".join)
def test_every_index(
    check: tuple[str, ...], name: str, topic: str, stage: Callable[[str], Path], tools: Tools
) -> None:
    partition = stage(name) / f"{topic}-0"
    indexes = partition_files(partition, ".index") + partition_files(partition, ".timeindex")
    printed = tools.dump_log(indexes, *(check or ("--deep-iteration",)))
    assert complaints(printed) == []
    if not check and name == "written":
        assert len(re.findall(r"^offset: \d+ position: \d+$", printed, re.MULTILINE)) > 50 // 8


@pytest.mark.parametrize("name", STAGES)
def test_every_snapshot(name: str, stage: Callable[[str], Path], tools: Tools) -> None:
    snapshots = partition_files(stage(name), ".snapshot")
    assert complaints(tools.dump_log(snapshots)) == []
