"""Opening a segment's file when it is first read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lastword.errors import FileVanishedError
from lastword.files import Handle
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from lastword.testing.unsynced import UnsyncedFiles

NAME = "00000000000000000000.log"


class Growing(UnsyncedFiles):
    """Files to which another process appends while they are inspected."""

    def open_read(self, path: Any) -> Handle:
        handle = super().open_read(path)
        inner = handle.stat

        def stat() -> Any:
            with Path(path).open("ab") as file:
                file.write(b"more")
            return inner()

        handle.stat = stat  # type: ignore[method-assign]
        return handle


def test_an_active_segment_that_grows_while_it_is_opened_was_not_replaced(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"some")
    segment = Segment.load(SegmentFiles(Growing(), str(tmp_path), 0), active=True)
    assert segment.handle.pread(100, 0) == b"somemore" and segment.size == 4


@pytest.mark.parametrize("how", ["shorter", "another file"])
def test_one_that_was_replaced_is_told(tmp_path: Path, how: str) -> None:
    (tmp_path / NAME).write_bytes(b"some")
    segment = Segment.load(SegmentFiles(UnsyncedFiles(), str(tmp_path), 0))
    if how == "shorter":
        (tmp_path / NAME).write_bytes(b"so")
    else:
        (tmp_path / "new").write_bytes(b"some")
        (tmp_path / "new").rename(tmp_path / NAME)
    with pytest.raises(FileVanishedError):
        _ = segment.handle
