"""Reading, and taking a lease, beside a process that opens, cleans and restarts: found by the soak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lastword.files import OsFiles
from lastword.partition import leases, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from tests.build import LogBuilder


def test_a_segment_rewritten_before_the_read_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of the bytes to read opened a file that was gone, and the read failed."""
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", 10)
    monkeypatch.setattr(scan, "PLAIN_BYTES", 10)
    log = LogBuilder(tmp_path, file_delete_delay_ms=0)
    for n in range(10):
        log.put(f"k{n % 3}", n)
    log.roll()
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    log.clean()
    assert not scan.is_short(view, 5, 10)
    assert [record.offset for record in scan.records(view, 5, 10)] == [7, 8, 9]
    log.close()


class Swept(OsFiles):
    """Files where a writer opens the log just before a rename, and removes files that look left over."""

    def __init__(self, log: LogBuilder, times: int) -> None:
        super().__init__()
        self.log, self.times = log, times

    def rename(self, old: Any, new: Any) -> None:
        if "lease-" in str(new) and self.times:
            self.times -= 1
            self.log.reopen()
        super().rename(old, new)


@pytest.mark.parametrize("times", [1, 3])
def test_a_lease_whose_scratch_file_was_swept_away(tmp_path: Path, times: int) -> None:
    log = LogBuilder(tmp_path)
    log.put("k", 1)
    files = Swept(log, times)
    leases.register(files, log.directory, "sink", 0, max_age_ms=1000, now_ms=0, log_start=0, log_end=1)
    leases.advance(files, log.directory, "sink", 1, now_ms=0, log_start=0, log_end=1)
    lease = leases.read(files, log.directory, "sink")
    assert lease is not None and lease.position == 1 and files.times == 0
    log.close()
