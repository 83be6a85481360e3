"""6E: deleted keys stay deleted, and tombstones stay long enough for readers."""

from __future__ import annotations

from pathlib import Path

from lastword.records import formats
from tests.build import HOUR, LogBuilder
from tests.properties.strategies import by_strategy
from tests.properties.support import T, header_of


@by_strategy
def test_6E_40_deleted_keys_do_not_come_back(tmp_path: Path, strategy: str) -> None:
    """6E.40: Keys that tombstones deleted do not reappear; their values are gone after cleaning."""
    log = LogBuilder(tmp_path, delete_retention_ms=HOUR, segment_bytes=600)
    for n in range(40):
        log.put(f"k{n % 8}", n)
    for n in range(0, 8, 2):
        log.delete(f"k{n}")
    log.put("k1", "the newest record of a partition stays")
    log.roll()
    for _ in range(5):
        log.clean(strategy=strategy)
        values = [r for r in log.records() if r.value is not None]
        assert {r.key for r in values} == {b"k1", b"k3", b"k5", b"k7"} and len(values) == 4
        log.wait(HOUR).reopen()
        assert set(log.state()) == {b"k1", b"k3", b"k5", b"k7"}
    assert all(r.value is not None for r in log.records()), "and at last the deletes are gone, too"
    log.close()


@by_strategy
def test_6E_41_an_old_timestamp_does_not_shorten_the_grace(tmp_path: Path, strategy: str) -> None:
    """6E.41: A tombstone is kept by the first and second cleaning however old its timestamp is: its time
    starts with the first cleaning.
    """
    log = LogBuilder(tmp_path, delete_retention_ms=HOUR)
    log.batch([("k", None)], timestamp=1).roll()
    for _ in range(2):
        log.clean(strategy=strategy)
        assert log.offsets()[0] == 0
        log.wait(HOUR // 3).put("other", "v").roll()
    log.close()


def test_6E_43_records_read_their_own_times_beside_a_horizon() -> None:
    """6E.43: Records in a batch with a delete horizon read back with their own timestamps, and the batch
    reports its horizon.

    Kafka's cleaner wrote this batch: its base timestamp field is the delete horizon.
    """
    data = bytes.fromhex(
        "00000000000000280000004e00000000026f32527d0040000000020000018bcfe56ddc0000018bcfe56802ffffffffffffffff"
        "ffffffffffff000000031200b7170002610231001000b51702026201001200b317040263023300"
    )
    header = header_of(data)
    formats.check_crc(data, header, "x.log")
    assert header.delete_horizon_ms == T + 1500
    rows = list(formats.read_records(data, header, "x.log"))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in rows] == [
        (40, T, b"a", b"1"),
        (41, T + 1, b"b", None),
        (42, T + 2, b"c", b"3"),
    ]
