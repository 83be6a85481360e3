"""The runner itself: records sent to a broker are read back, and faults of the dump tool are detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import loader
from tests.support.damage import flip
from tests.support.kafka import Broker, KafkaRecord, Tools, adopt, complaints

RECORDS = [
    KafkaRecord(b"ada", b"1", 1_700_000_000_000, (("h", b"x"), ("h", None), ("", b""))),
    KafkaRecord(b"", b"", 1_700_000_000_001),
    KafkaRecord(None, None, 1_699_999_999_999),
    KafkaRecord(b"ada", None, 1_700_000_000_002),
]


def test_a_broker_keeps_what_was_produced_over_a_kill_and_adopts_a_directory(
    tools: Tools, tmp_path: Path
) -> None:
    golden = loader.case("v2-mixed")
    source = golden.unpack(tmp_path / "golden") / "data" / "v2-mixed-0"
    broker = Broker(tools, tmp_path / "logs")
    broker.start()
    broker.create_topics({"mine": {"partitions": 2}, "theirs": {}})
    assert broker.produce("mine", [RECORDS[:1], RECORDS[1:]], compression_type="zstd") == [0, 1, 2, 3]
    with pytest.raises(OSError):
        adopt(broker.directory, "theirs-0", source)
    broker.kill()
    adopt(broker.directory, "theirs-0", source)
    with broker:
        seen = broker.consume("mine", "theirs")
    assert [(r.key, r.value, r.timestamp, r.headers) for r in seen["mine-0"].records] == [
        (r.key, r.value, r.timestamp, r.headers) for r in RECORDS
    ]
    assert seen["mine-1"].records == ()
    expected = golden.expected("data")
    assert [(r.offset, r.key, r.headers) for r in seen["theirs-0"].records] == [
        (line["offset"], line["key"], line["headers"]) for line in expected
    ]


def test_a_broker_leaves_its_jvm_to_the_next_one_which_has_a_log_of_its_own(
    tools: Tools, tmp_path: Path
) -> None:
    first, second = Broker(tools, tmp_path / "first"), Broker(tools, tmp_path / "second")
    with first:
        jvm = first.pid
    log = first.log_text
    for _ in range(2):
        with second:
            assert second.pid == jvm
            assert second.log_text.count("Kafka Server started") == 1
            assert str(second.directory) in second.log_text
    assert first.log_text == log and str(first.directory) in log
    second.start().kill()
    with first:
        assert first.pid != jvm


@pytest.mark.parametrize(
    ("extensions", "number", "position", "bit"),
    [((".log",), 1, 70, 4), ((".index", ".timeindex"), 0, 3, 1)],
    ids=["log", "index"],
)
def test_the_dump_tool_complains_of_a_flipped_bit(
    extensions: tuple[str, ...], number: int, position: int, bit: int, tools: Tools, tmp_path: Path
) -> None:
    partition = loader.case("v2-none").unpack(tmp_path) / "data" / "v2-none-0"
    files = [path for extension in extensions for path in loader.partition_files(partition, extension)]
    assert complaints(tools.dump_log(files)) == []
    flip(files[number], position, bit)
    assert complaints(tools.dump_log(files)) != []


def test_the_dump_tool_complains_of_batches_that_kafka_s_own_cleaner_emptied(
    tools: Tools, tmp_path: Path
) -> None:
    """So this complaint, and no other, is ignored for logs with such batches."""
    case = loader.case("tx-rolled-by-time")
    partition = case.unpack(tmp_path, "round1-after") / "round1-after" / "tx-rolled-by-time-0"
    printed = tools.dump_log(loader.partition_files(partition, ".timeindex"))
    assert complaints(printed) != []
    assert complaints(printed, emptied=True) == []


def test_the_dump_tool_says_what_it_refuses(tools: Tools) -> None:
    with pytest.raises(RuntimeError):
        tools.dump_log([Path("/nowhere/00000000000000000000.log")])
