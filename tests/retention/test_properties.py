"""Retention as a broker does it: properties 296 to 307, and the cases around them in reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.cleaner.policy import quarantine
from lastword.errors import CorruptBatchError, DiskFullError, OffsetOutOfRangeError
from lastword.logdir import LogDirectory
from lastword.partition.cut import read_note
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import RecordingFiles
from tests.golden.loader import case
from tests.partition.logs import records
from tests.retention.support import DAY, DELETED, HOUR, NOW, Log, decided, expire_partition, fakes, policy
from tests.support.settings import set_topic_config

DELETE = {"cleanup.policy": "delete", "retention.ms": "-1"}


def test_6V_296_only_up_to_the_high_watermark() -> None:
    """6V.296: Expired segments are removed only up to the high watermark; the log start never passes it."""
    segments = fakes(*[(100, 30 * DAY)] * 4)
    config = policy("delete", retention_ms=DAY)
    for top in range(41):
        deletion = decided(segments, config, upper_offset=top)
        assert deletion.log_start <= top and deletion.segments == top // 10


def test_6V_297_deleting_everything_keeps_the_log_end(tmp_path: Path) -> None:
    """6V.297: Deleting everything keeps the log end and one empty segment; the next append gets the log
    end.
    """
    log = Log(tmp_path, **DELETE | {"retention.ms": "1h"}).fill(15, age_ms=2 * HOUR)
    deletion = log.expire()
    assert deletion.segments == 3 and deletion.log_start == 15
    assert log.bases == [15] and log.log.active.size == 0
    assert (log.log.log_start, log.log.log_end) == (15, 15)
    assert not log.expire().removes
    log.fill(1)
    assert log.log.log_end == 16 and log.bases == [15]
    for again in (log.reopen, log.kill):
        again()
        assert (log.log.log_start, log.log.log_end) == (15, 16)
    log.close()


@pytest.mark.parametrize(("records_kept", "segments"), [(10, 2), (15, 3)])
def test_6V_298_size(tmp_path: Path, records_kept: int, segments: int) -> None:
    """6V.298: `retention.bytes` leaves the fewest segments that are not below it."""
    log = Log(tmp_path, **DELETE).fill(15)
    size = sum(s.size for s in log.log.segments)
    set_topic_config(log.home, "users", {"retention.bytes": size * records_kept // 15})
    log.expire()
    assert len(log.log.segments) == segments
    log.close()


@pytest.mark.parametrize(("age_ms", "segments"), [(20 * DAY, 1), (0, 3)])
def test_6V_299_time(tmp_path: Path, age_ms: int, segments: int) -> None:
    """6V.299: `retention.ms` leaves fresh segments and the last one."""
    log = Log(tmp_path, **DELETE | {"retention.ms": "10d"}).fill(15, age_ms=age_ms)
    log.expire()
    assert len(log.log.segments) == segments
    log.close()


def test_6V_300_compact_knows_no_time(tmp_path: Path) -> None:
    """6V.300: With the policy compact nothing is deleted by time."""
    log = Log(tmp_path, **{"cleanup.policy": "compact", "retention.ms": "1h"}).fill(15, age_ms=5 * HOUR)
    assert not log.expire().removes and log.bases == [0, 5, 10]
    log.close()


def test_6V_301_compact_knows_the_log_start(tmp_path: Path) -> None:
    """6V.301: With the policy compact, segments below the log start are deleted."""
    log = Log(tmp_path, **{"cleanup.policy": "compact"}).fill(15)
    log.raise_log_start(7)
    deletion = log.expire()
    assert deletion.segments == 1 and deletion.codes == ("log-start",) and deletion.log_start == 7
    assert log.bases == [5, 10] and log.log.log_start == 7
    log.close()


def test_6V_303_deleting_records_up_to_an_offset(tmp_path: Path) -> None:
    """6V.303: Deleting the records before an offset deletes the segments that end before it."""
    log = Log(tmp_path, **DELETE).fill(15)
    for before, left in ((1, 3), (6, 2), (15, 1)):
        log.trim(before)
        assert (log.log.log_start, len(log.log.segments)) == (before, left)
        log.kill()
        assert (log.log.log_start, log.log.log_end) == (before, 15)
    log.close()


def test_6V_304_names_go_at_once_bytes_after_the_delay(tmp_path: Path) -> None:
    """6V.304: A deletion renames files to `.deleted`; they exist until the delay has passed."""
    log = Log(tmp_path, **DELETE | {"retention.ms": "1h", "file.delete.delay.ms": "1m"})
    log.fill(10, age_ms=2 * HOUR).fill(5)
    view = PartitionView.load(DirectorySegments(UNSYNCED, str(log.path)))
    before = [header.base_offset for header in view.segments[0].headers()]
    log.expire()
    assert log.named(".log") == [10] and log.named(".log" + DELETED) == [0, 5]
    assert log.named(".index" + DELETED) == [0, 5]
    assert [header.base_offset for header in view.segments[0].headers()] == before  # earlier readers finish
    log.clock.advance(59_999)
    log.log.remove_deferred()
    assert log.named(".log" + DELETED) == [0, 5]
    log.clock.advance(1)
    assert log.log.remove_deferred() > 0
    assert log.named(DELETED) == []
    log.close()


def test_304_a_date_that_jumps_neither_hurries_nor_delays_it(tmp_path: Path) -> None:
    log = Log(tmp_path, **DELETE | {"retention.ms": "1h", "file.delete.delay.ms": "1m"})
    log.fill(10, age_ms=2 * HOUR).fill(5)
    log.expire()
    for date in (NOW + 3650 * DAY, NOW - 3650 * DAY):
        log.clock.set_date(date)
        log.log.remove_deferred()
        assert log.named(".log" + DELETED) == [0, 5]
    log.clock.advance(60_000)
    log.log.remove_deferred()
    assert log.named(DELETED) == []
    log.close()


@pytest.mark.parametrize("end", ["reopen", "kill", "close"])
def test_304_and_at_closing_or_opening(tmp_path: Path, end: str) -> None:
    log = Log(tmp_path, **DELETE | {"retention.ms": "1h"}).fill(10, age_ms=2 * HOUR).fill(5)
    log.expire()
    getattr(log, end)()
    if end != "close":
        assert log.log.log_start == 10
    assert log.named(DELETED) == []
    if end != "close":
        log.close()


def test_6V_305_snapshots_go_too_one_remains(tmp_path: Path) -> None:
    """6V.305: The snapshots of deleted segments are deleted too; one remains."""
    log = Log(tmp_path, **DELETE).fill(15)
    log.reopen()
    assert log.named(names.SNAPSHOT)[-1] == 15
    log.trim(10)
    assert [n for n in log.named(names.SNAPSHOT) if n < 10] == []
    log.trim(15)
    assert len(log.named(names.SNAPSHOT)) >= 1
    log.close()


def test_6V_306_a_beginning_without_an_empty_active_segment() -> None:
    """6V.306: Segments are deleted from the front only, and an empty active segment is never among them."""
    config = policy("delete", retention_ms=0)
    assert decided(fakes((100, 1), (100, 1), (0, 1)), config).segments == 2
    assert decided(fakes((100, 1), (100, 1), (100, 1)), config).segments == 3
    assert decided(fakes((100, 1), (100, 0), (100, 1)), config).segments == 1


def test_6V_307_what_remains(tmp_path: Path) -> None:
    """6V.307: After retention exactly the log, its two indexes, its snapshot and the epoch checkpoint
    remain.
    """
    log = Log(tmp_path, **DELETE | {"retention.ms": "1h"}).fill(15, age_ms=2 * HOUR)
    log.expire()
    log.close()
    left = sorted(p.name for p in log.path.iterdir() if p.is_file())
    stem = f"{15:020d}"
    assert left == [
        f"{stem}.index",
        f"{stem}.log",
        f"{stem}.snapshot",
        f"{stem}.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert (log.path / names.LEADER_EPOCHS).read_text() == "0\n1\n0 15\n"


class TestLogStart:
    def test_6X_340_is_checkpointed_only_while_it_lies_inside_a_segment(self, tmp_path: Path) -> None:
        """6X.340: The log-start checkpoint has a line only while the log start is above the first
        segment's base.
        """
        log = Log(tmp_path, **DELETE).fill(15)
        checkpoint = tmp_path / names.LOG_STARTS
        log.trim(7)
        assert "users 0 7" in checkpoint.read_text()
        log.home.sync()
        assert "users 0 7" in checkpoint.read_text()
        log.trim(10)
        log.home.sync()
        assert checkpoint.read_text() == "0\n0\n"
        log.close()

    def test_cannot_be_above_the_end_and_never_falls(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **DELETE).fill(15)
        with pytest.raises(OffsetOutOfRangeError):
            log.raise_log_start(16)
        assert log.log.log_start == 0
        for offset in (9, 3):
            log.raise_log_start(offset)
            assert log.log.log_start == 9
            assert log.home.checkpoints.log_starts.read() == {("users", 0): 9}
        log.close()

    def test_why_is_noted(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **DELETE | {"retention.ms": "1h"}).fill(10, age_ms=2 * HOUR).fill(5)
        log.expire()
        assert read_note(UNSYNCED, str(log.path), 10) == "retention.ms, 2023-11-14 22:13:20Z"
        assert read_note(UNSYNCED, str(log.path), 11) == ""
        note = log.path / names.PRIVATE / names.LOG_START_NOTE
        for bad in (b"", b"{", b"[]", b"\xff", b'{"log_start": "x"}'):
            note.write_bytes(bad)
            assert read_note(UNSYNCED, str(log.path), 10) == ""
        log.close()


def test_a_quarantined_partition_expires_all_the_same(tmp_path: Path) -> None:
    """6K.103: Quarantined partitions are not offered to the cleaner's retention.

    Here: Retention also removes segments of partitions that cannot be cleaned.

    In Kafka a partition that cannot be cleaned does not expire either, so a bad record can fill the disk.
    """
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "1h"}
    log = Log(tmp_path, **settings).fill(10, age_ms=2 * HOUR).fill(5)
    quarantine.put(UNSYNCED, str(log.path), CorruptBatchError("a bad batch"), NOW)
    assert log.expire().segments == 2
    assert quarantine.load(UNSYNCED, str(log.path)) is not None
    log.close()


class TestRollByTimer:
    """Appendix B 12: segment.ms and max.compaction.lag.ms hold without new appends."""

    def test_a_quiet_compacted_log_rolls_when_it_is_opened(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **{"cleanup.policy": "compact", "segment.ms": "1h"}).fill(3)
        path = log.path / names.segment_file(0, names.LOG)
        log.close()
        UNSYNCED.set_mtime(path, NOW)
        log.clock.advance(HOUR)
        log = Log(tmp_path, log.clock)
        assert log.bases == [0]
        log.close()
        UNSYNCED.set_mtime(path, NOW)
        log.clock.advance(1)
        log = Log(tmp_path, log.clock)
        assert log.bases == [0, 3]
        log.close()

    def test_the_lag_counts_too(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **{"cleanup.policy": "compact", "max.compaction.lag.ms": "1h"}).fill(3)
        log.clock.advance(HOUR + 1)
        log.expire()
        assert log.bases == [0, 3]
        log.close()

    def test_others_roll_with_an_append_only(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **DELETE | {"segment.ms": "1h"}).fill(3)
        log.clock.advance(5 * HOUR)
        log.expire()
        assert log.bases == [0]
        log.close()

    def test_old_records_do_not_begin_a_segment_with_every_opening(self, tmp_path: Path) -> None:
        log = Log(tmp_path, **{"cleanup.policy": "compact", "segment.ms": "1h"}).fill(3, age_ms=900 * DAY)
        for turn in range(4):
            UNSYNCED.set_mtime(log.path / names.segment_file(0, names.LOG), NOW + turn)
            log.reopen().log  # noqa: B018
        assert log.bases == [0]
        log.close()

    def test_a_full_drive_prevents_neither_reading_nor_retention(self, tmp_path: Path) -> None:
        """The roll needs room in the partition, and the removal of segments makes it."""
        settings = {"cleanup.policy": "compact,delete", "segment.ms": "1h", "retention.ms": "3h"}
        log = Log(tmp_path, **settings).fill(10, age_ms=2 * HOUR).fill(3)
        log.close()
        UNSYNCED.set_mtime(log.path / names.segment_file(10, names.LOG), NOW)
        log.clock.advance(HOUR + 1)
        files = RecordingFiles(UNSYNCED)
        files.fail = lambda call: (
            DiskFullError("planted") if call.name in ("create", "append") and "users-0" in call.path else None
        )
        log = Log(tmp_path, log.clock, files)
        assert log.bases == [0, 5, 10] and len(records(log.log)) == 13
        assert log.expire().segments == 2 and log.bases == [10]
        files.fail = None
        log.expire()
        assert log.bases == [10, 13]
        log.close()


def test_golden_dir_clean_kafka28(tmp_path: Path) -> None:
    """A directory of Kafka 2.8: magic 0, 1 and 2, DeleteRecords at 33, an empty marker, meta.properties 0."""
    golden = case("dir-clean-kafka28")
    golden.unpack(tmp_path)
    root = tmp_path / "data"
    offsets: dict[str, list[int]] = {}
    for line in golden.expected("data"):
        offsets.setdefault(line["partition"], []).append(line["offset"])
    with LogDirectory.open(root, "a", UNSYNCED) as logs:
        assert logs.recovery.clean
        for name, partition_offsets in offsets.items():
            topic, _, number = name.rpartition("-")
            log = logs.log(topic, int(number))
            assert log.log_end == max(partition_offsets) + 1
        trimmed = {
            str(tp): logs.log(*tp).log_start for tp in logs.topic_partitions() if logs.log(*tp).log_start
        }
        assert 33 in trimmed.values(), trimmed
        for tp in logs.topic_partitions():
            assert expire_partition(logs, *tp).codes == ("no-policy",)  # only a setting removes anything
        set_topic_config(
            logs, "old", {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": 0}
        )
        log = logs.log("old", 0)
        end, segments = log.log_end, len(log.segments)
        done = expire_partition(logs, "old", 0)
        assert done.segments == segments and (log.log_start, log.log_end) == (end, end)
    assert (root / names.CLEAN_SHUTDOWN).exists()
    with LogDirectory.open(root, "a", UNSYNCED) as logs:
        assert (logs.log("old", 0).log_start, logs.log("old", 0).log_end) == (end, end)
