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
        ("09223372036854775807.index", SegmentFile(2**63 - 1, ".index", "")),
    ],
)
def test_segment_files(name: str, parsed: SegmentFile) -> None:
    assert names.parse_segment_file(name) == parsed
    assert parsed.name == name


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
        ("a.b-c_d-delete-12", PartitionDir("a.b-c_d-delete", 12)),
        ("users-3.0123456789abcdef0123456789abcdef-delete", PartitionDir("users", 3, "delete")),
        ("users-3.0123456789abcdef0123456789abcdef-stray", PartitionDir("users", 3, "stray")),
        ("users-3.0123456789abcdef0123456789abcdef-future", PartitionDir("users", 3, "future")),
        ("users", None),
        ("-0", None),
        ("users-", None),
        ("users-x", None),
        ("users-01", None),
        ("us ers-1", None),
        ("..-1", None),
    ],
)
def test_partition_directories(name: str, parsed: PartitionDir | None) -> None:
    assert names.parse_partition_dir(name) == parsed


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\n", "ä", "x" * 250, "a b", None, 7])
def test_names_that_kafka_refuses(name: object) -> None:
    with pytest.raises(InvalidTopicError):
        names.check_topic(name)  # type: ignore[arg-type]


def test_the_longest_name_fits_when_it_is_marked_for_deletion() -> None:
    marked = names.marked_partition_dir("x" * 249, 17, "delete", "0" * 32)
    assert len(marked) == 255
    parsed = names.parse_partition_dir(marked)
    assert parsed is not None and (parsed.partition, parsed.marker) == (17, "delete")
