"""`lastword.map.scratch`: keys in mapped files. The same cleaning with less memory, and no file is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import InvalidSettingError, StorageError

NOW_MS = 1_795_168_800_000


def write(root: Path) -> None:
    with lastword.open(root, "a", log_cleaner_enable=False, clock=ManualClock(NOW_MS)) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=4096)
        for number in range(400):
            value = None if number % 7 == 0 else b"%d" % number
            topic.append(b"%040d" % (number * number % 97), value)


def clean(root: Path, strategy: str, scratch: Path | None) -> dict[str, bytes]:
    """Clean in two openings, the second with accounts, and return the contents of the log files."""
    settings = {} if scratch is None else {"lastword_map_scratch": str(scratch)}
    for day in range(2):
        clock = ManualClock(NOW_MS + day * 2 * 86_400_000)
        with lastword.open(root, "a", log_cleaner_enable=False, clock=clock, **settings) as logs:
            logs.topic("t").append(b"%040d" % day, b"x")
            logs.clean("t", strategy=strategy)
    return {path.name: path.read_bytes() for path in (root / "t-0").glob("*.log")}


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_the_same_cleaning_and_nothing_left(tmp_path: Path, strategy: str) -> None:
    write(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "spilled")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    plain = clean(tmp_path / "plain", strategy, None)
    assert clean(tmp_path / "spilled", strategy, scratch) == plain
    assert not list(scratch.iterdir())


def test_the_background_and_the_command_line_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory does not exist, the error names it: there is no silent fallback to memory."""
    write(tmp_path / "data")
    monkeypatch.setenv("LASTWORD_MAP_SCRATCH", str(tmp_path / "absent"))
    for strategy in ("kafka", "generational"):
        with (
            lastword.open(
                tmp_path / "data", "a", log_cleaner_enable=False, lastword_strategy=strategy
            ) as logs,
            pytest.raises(StorageError, match="absent"),
        ):
            logs.clean()
    monkeypatch.setenv("LASTWORD_MAP_SCRATCH", "off")
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        assert logs.settings.instance.lastword_map_scratch is None
        assert logs.clean()[0].complete
    with pytest.raises(InvalidSettingError, match="a directory, or off"):
        lastword.open(tmp_path / "data", lastword_map_scratch=7)
