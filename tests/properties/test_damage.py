"""6H: large messages are cleaned; damage stops the cleaning of its own partition only."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import lastword
from lastword import metrics
from lastword.cleaner.policy import quarantine
from lastword.errors import CorruptBatchError, DataError, PartialFailure, UnknownMagicError
from tests.build import LogBuilder
from tests.properties.strategies import by_strategy

LARGE = random.Random(0).randbytes(3 << 20)


@by_strategy
@pytest.mark.parametrize("limit", [4 << 20, 1000], ids=["70", "71"])
def test_6H_70_71_messages_above_every_buffer_and_above_a_lowered_limit(
    tmp_path: Path, strategy: str, limit: int
) -> None:
    """6H.70: Batches larger than every buffer of the cleaner are cleaned.
    6H.71: Batches larger than a lowered `max.message.bytes` are cleaned.
    """
    log = LogBuilder(tmp_path, max_message_bytes=4 << 20)
    log.put("large", LARGE).put("large", LARGE + b"2").put("small", 1).roll()
    log.topic("users", max_message_bytes=limit).reopen()
    log.clean(strategy=strategy)
    assert log.state() == {b"large": LARGE + b"2", b"small": b"1"} and log.offsets() == [1, 2]
    log.close()


def damaged(root: Path, position: int, data: bytes) -> LogBuilder:
    """Open a log and overwrite bytes at `position` of its closed segment with `data`."""
    log = LogBuilder(root)
    for n in range(4):
        log.put("k", n)
    log.roll().put("k", 9)
    with (root / "users-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(position)
        file.write(data)
    return log


@by_strategy
@pytest.mark.parametrize(
    ("position", "data", "error"),
    [(16, b"\x09", UnknownMagicError), (8, b"\x7f\xff\xff\xff", CorruptBatchError)],
    ids=["72", "73"],
)
def test_6H_72_73_a_header_that_makes_no_sense_is_an_error(
    tmp_path: Path, strategy: str, position: int, data: bytes, error: type[DataError]
) -> None:
    """6H.72: An unknown magic in the first header is an error, not a growing buffer.
    6H.73: A batch size that points past the end of the file is an error.

    No buffer grows without limit, the file stays as it is, and the partition is quarantined.
    """
    log = damaged(tmp_path, position, data)
    path = tmp_path / "users-0" / f"{0:020d}.log"
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        log.clean(strategy=strategy)
    assert caught.value.file == str(path) and caught.value.position == 0
    assert path.read_bytes() == before
    assert quarantine.load(log.files, log.directory) is not None
    assert log.plan().reasons[0].code == "quarantined"
    log.abandon()


@by_strategy
def test_6H_74_75_garbage_sets_one_partition_aside_and_the_gauges_tell(tmp_path: Path, strategy: str) -> None:
    """6H.74: A partition with damaged bytes in its log is quarantined; the other partitions are cleaned.
    6H.75: Gauges count the quarantined partitions and their bytes; deleting such a partition reduces them.
    6J.84: An exception while a log is evaluated is reported with the log and the cause.

    Here: The error names file and position, and the other logs are cleaned.
    """
    data = tmp_path / "data"
    with lastword.open(data, "a", log_cleaner_enable=False, lastword_strategy=strategy) as logs:
        for name in ("bad", "good"):
            topic = logs.create_topic(name, cleanup_policy="compact")
            for n in range(6):
                topic.append(b"k", b"%d" % n)
            logs.dirs.log(name, 0).roll()
            topic.append(b"k", b"newest")
    path = data / "bad-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        with pytest.raises(PartialFailure) as caught:
            logs.clean(strategy=strategy)
        assert isinstance(caught.value, DataError) and caught.value.file == str(path)
        assert [(r.topic, r.records_kept) for r in caught.value.results] == [("good", 1)]
        assert [p.action for p in logs.plan("bad")] == ["keep"]
        count, size = gauges(logs, data)
        assert count == 1 and size >= len(content)
        logs.delete_topic("bad")
        assert gauges(logs, data) == (0, 0)


def gauges(logs: lastword.LogDir, root: Path) -> tuple[float, float]:
    list(metrics.metrics())  # listing the metrics measures the gauges
    place = os.path.realpath(root)
    return metrics.QUARANTINED_PARTITIONS.value(place), metrics.QUARANTINED_BYTES.value(place)
