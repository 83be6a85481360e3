from __future__ import annotations

import pytest

from lastword.errors import InvalidTopicError
from lastword.segment import names
from lastword.segment.names import PartitionDir, SegmentFile


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("00000000000000000042.log", SegmentFile(42, ".log", "")),
        ("00000000000000000042.timeindex.swap", SegmentFile(42, ".timeindex", ".swap")),
        ("00000000000000000042.snapshot.deleted", SegmentFile(42, ".snapshot", ".deleted")),
        ("00000000000000000000.txnindex.cleaned", SegmentFile(0, ".txnindex", ".cleaned")),
        ("09223372036854775807.index", SegmentFile(2**63 - 1, ".index", "")),
    ],
)
def test_segment_files(name: str, parsed: SegmentFile) -> None:
    """6U.292: The offset is parsed from the names of log, index, snapshot and deleted files."""
    assert names.parse_segment_file(name) == parsed
    assert parsed.name == names.segment_file(*parsed) == name


@pytest.mark.parametrize(
    "name",
    [
        "42.log",
        "x.cleaned",
        "00000000000000000042.log.tmp",
        "00000000000000000042.checkpoint",
        "-0000000000000000042.log",
        "99999999999999999999.log",
        "00000000000000000042",
        "leader-epoch-checkpoint",
    ],
)
def test_other_files(name: str) -> None:
    assert names.parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("users-0", PartitionDir("users", 0)),
        ("a.b.c-12", PartitionDir("a.b.c", 12)),
        ("a.b-c_d-delete-12", PartitionDir("a.b-c_d-delete", 12)),
        ("users-3.0123456789abcdef0123456789abcdef-delete", PartitionDir("users", 3, "delete")),
        ("users-3.0123456789abcdef0123456789abcdef-stray", PartitionDir("users", 3, "stray")),
        ("users-3.0123456789abcdef0123456789abcdef-future", PartitionDir("users", 3, "future")),
        ("", None),
        ("users", None),
        ("-0", None),
        ("users-", None),
        ("users--", None),
        ("users-1a", None),
        ("users-0-delete", None),
        ("users-01", None),
        ("us ers-1", None),
        ("..-1", None),
    ],
)
def test_partition_directories(name: str, parsed: PartitionDir | None) -> None:
    """6U.290: Names of partition directories are parsed; topics may contain dots. A name without dash, topic
    or number is an error.

    Here: Other names are ignored (`logdir.topics`); a broker does not start if there are such names.
    """
    assert names.parse_partition_dir(name) == parsed
    if parsed and not parsed.marker:
        assert names.partition_dir(parsed.topic, parsed.partition) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\n", "ä", "x" * 250, "a b", None, 7])
def test_names_that_kafka_refuses(name: object) -> None:
    with pytest.raises(InvalidTopicError):
        names.check_topic(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["x" * 249, "x"])
@pytest.mark.parametrize("number", [0, 17, 2**31 - 1])
def test_the_longest_name_fits_when_it_is_marked_for_deletion(topic: str, number: int) -> None:
    """6U.291: Names of deleted directories have at most 255 characters."""
    marked = names.marked_partition_dir(topic, number, "delete", "0" * 32)
    assert len(marked) <= 255
    parsed = names.parse_partition_dir(marked)
    assert parsed is not None and (parsed.partition, parsed.marker) == (number, "delete")
    assert topic.startswith(parsed.topic)
