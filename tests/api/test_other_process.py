"""Another process reads without a lock, at every step of a cleaning and after a stop at every step.

It finds the old or the new segments of each group, never a hole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastword
from lastword.files import DEFAULT
from tests.api.other_process import OtherProcess
from tests.fakes import RecordingFiles, Stopped
from tests.support.exhaustive import stride

Rows = list[list]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write several segments of updates and deletes, and close the log cleanly."""
    root = tmp_path_factory.mktemp("written") / "data"
    with lastword.open(root, "a") as logs:
        topic = logs.create_topic("users", cleanup_policy="compact", segment_bytes="1KiB")
        for i in range(60):
            topic.append(b"k%d" % (i % 7), None if i % 11 == 10 else b"value %03d" % i + b"." * 60)
        assert len(topic.segments()) > 4
    return root


def newest(rows: Rows) -> dict[str, list]:
    return {row[1]: row for row in rows}


def check(seen: Rows, old: Rows, label: str) -> None:
    """Check that a reader got old records, unchanged and in order, with the newest record of every key."""
    by_offset = {row[0]: row for row in old}
    offsets = [row[0] for row in seen]
    assert offsets == sorted(set(offsets)), label
    assert all(by_offset[row[0]] == row for row in seen), label
    assert newest(seen) == newest(old), label


def test_at_every_step(written: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(written, directory)
    sizes = []
    with OtherProcess() as other:
        old = other.read(str(directory), "users")

        class Watched(RecordingFiles):
            def do(self, call, action, half=None):  # type: ignore[no-untyped-def]
                result = super().do(call, action, half)
                if call.changes:
                    seen = other.read(str(directory), "users")
                    check(seen, old, str(call))
                    sizes.append(len(seen))
                return result

        with lastword.open(directory, "a", files=Watched(DEFAULT)) as logs:
            logs.clean("users")
        assert len(other.read(str(directory), "users")) < len(old)
    # Each swap shows its whole group, so the log shrinks in one step for each group, and never grows.
    assert sizes == sorted(sizes, reverse=True) and 2 <= len(set(sizes)) <= 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the watch dies with it
def test_after_a_stop_at_every_step(written: Path, tmp_path: Path) -> None:
    outcomes = []
    with OtherProcess() as other:
        old = other.read(str(written), "users")
        for stop in range(0, 1000, stride(3)):
            directory = tmp_path / f"stop{stop}"
            shutil.copytree(written, directory)
            files = RecordingFiles(DEFAULT, stop_at=stop)
            try:
                with lastword.open(directory, "a", files=files) as logs:
                    logs.clean("users")
            except Stopped:
                seen = other.read(str(directory), "users")
                check(seen, old, f"stop {stop}: {files.changes[-1:]}")
                outcomes.append(len(seen))
                shutil.rmtree(directory)
            else:
                break
        else:
            pytest.fail("the cleaning never ended")
    assert len(outcomes) > 30 // stride(3) and len(set(outcomes)) >= 2
