"""Check every verb on seeded damage: it returns a result or raises our error; see `mutants`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lastword
from lastword.clock import ManualClock
from lastword.config import Settings
from lastword.errors import CorruptBatchError, DataError, SerializerError, UsageError
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.crash import mutants
from tests.support.exhaustive import stride

SEEDS_PER_TEST = 10


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutants") / "template"
    mutants.build(root)
    return root


@pytest.mark.parametrize("mode", ["r", "a"])
def test_every_verb_works_on_the_sound_directory(template: Path, tmp_path: Path, mode: Any) -> None:
    """Otherwise the harness would judge only refusals."""
    shutil.copytree(template, tmp_path / "data")
    clock, files = ManualClock(mutants.NOW + 10**6), UnsyncedFiles()
    with lastword.open(tmp_path / "data", mode, clock=clock, files=files, **mutants.SETTINGS) as logs:
        for _, call in mutants._verbs(logs, tmp_path):
            call()


@pytest.mark.parametrize("first", range(0, 10, SEEDS_PER_TEST))
def test_mutants(template: Path, tmp_path: Path, first: int) -> None:
    problems = [
        p for seed in range(first, first + SEEDS_PER_TEST) for p in mutants.judge(template, tmp_path, seed)
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10, 60, SEEDS_PER_TEST * stride(6)))
def test_more_mutants(template: Path, tmp_path: Path, first: int) -> None:
    test_mutants(template, tmp_path, first)


@pytest.mark.parametrize("planted", [False, True])
def test_settings_that_cannot_be_read_remove_nothing(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Defaults in their place would: so a planted fault is found."""
    root, removed = tmp_path / "data", []
    shutil.copytree(template, root)
    (root / "lastword.toml").write_text('[defaults]\ncleanup.policy = "delete"\nretention.ms = 1\n')
    for topic in mutants.TOPICS[:2]:
        (root / f"lastword.topic-{topic}.toml").write_text("retention.ms = 7d\n")
    if planted:
        monkeypatch.setattr(Settings, "_own", lambda self, name: ({}, None))
    clock = ManualClock(mutants.NOW + 10**9)
    with lastword.open(root, "a", clock=clock, files=UnsyncedFiles(), **mutants.SETTINGS) as logs:
        removed = list(mutants.removed_unread(logs))
    assert removed == (["users", "plain"] if planted else [])


# ---------------------------------------------------------------- faults that were found, by name


def _filled(root: Path, **settings: Any) -> None:
    with lastword.open(root, "a", files=UNSYNCED, segment_bytes=800, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(30):
            topic.append(b"k%d" % (number % 5), b"value %d" % number)


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
@pytest.mark.parametrize("distance", [1, 2, 5])
def test_cleaning_segments_that_overlap(tmp_path: Path, strategy: Any, distance: int) -> None:
    root = tmp_path / "d"
    _filled(root)
    source = sorted((root / "t-0").glob("*.log"))[1]
    for extension in (".log", ".index", ".timeindex"):
        target = source.with_name(f"{int(source.stem) + distance:020d}{extension}")
        shutil.copy(source.with_suffix(extension), target)
    before = {path: path.read_bytes() for path in (root / "t-0").glob("*.log")}
    with (
        lastword.open(root, "a", files=UNSYNCED, segment_bytes=800, log_cleaner_enable=False) as logs,
        pytest.raises(DataError),
    ):
        logs.clean("t", strategy=strategy)
    assert all(path.read_bytes() == data for path, data in before.items())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62, 5], pa.timestamp("s", tz="UTC")),
        pa.array([5, -(2**62)], pa.timestamp("s", tz="UTC")),
        pa.array([2**63 + 5, 5], pa.uint64()),
    ],
    ids=lambda column: str(column.type),
)
def test_times_that_do_not_fit_from_arrow(tmp_path: Path, column: Any) -> None:
    """These timestamps overflowed without an error, or raised an error of Arrow's."""
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED) as logs:
        topic = logs.create_topic("t")
        with pytest.raises(UsageError, match="milliseconds"):
            topic.extend(pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"], "timestamp": column}))
        assert list(topic.read()) == []


def test_times_after_the_year_9999(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED) as logs:
        topic = logs.create_topic("t")
        topic.append(b"k", b"v", timestamp=2**62)
        (record,) = topic.read()
        assert record.timestamp == 2**62
        (batch,) = topic.read().arrow()
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [2**62]
        with pytest.raises(SerializerError, match="9999"):
            _ = record.time


@pytest.mark.parametrize("name", ["\ud800", "a\udc7fb", "\udfff"])
def test_a_header_name_that_is_not_unicode(tmp_path: Path, name: str) -> None:
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED) as logs:
        topic = logs.create_topic("t")
        for headers in ({name: b"1"}, [(name, None)]):
            with pytest.raises(SerializerError, match="header name"):
                topic.append(b"k", b"v", headers=headers)
        assert list(topic.read()) == []


def test_a_truncation_inside_a_batch_leaves_one_end(tmp_path: Path) -> None:
    """The writer, a reader and the next opening have the same log end."""
    root = tmp_path / "d"
    with lastword.open(root, "a", files=UNSYNCED) as logs:
        topic = logs.create_topic("t")
        topic.append(b"k", b"v")
        topic.extend([(b"k%d" % n, b"v") for n in range(5)])
        logs.dirs.log("t", 0).truncate_to(4)
        assert logs.dirs.log("t", 0).log_end == 4
        assert PartitionView.load(DirectorySegments(UNSYNCED, str(root / "t-0"))).log_end == 4
    with lastword.open(root) as logs:
        assert logs.topic("t").bounds()[0][1] == 4
        assert [r.offset for r in logs.topic("t").read()] == [0]
        assert logs.verify().ok
    with lastword.open(root, "a", files=UNSYNCED) as logs:
        assert logs.topic("t").append(b"k", b"v").offset == 4
        assert [r.offset for r in logs.topic("t").read()] == [0, 4]


def test_a_shorter_log_names_what_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "d"
    _filled(root)
    log = max(path for path in (root / "t-0").glob("*.log") if path.stat().st_size)
    log.write_bytes(b"".join(mutants._batches(log.read_bytes())[:-1]))
    with lastword.open(root) as logs, pytest.raises(CorruptBatchError, match="offset 29 is missing"):
        list(logs.topic("t").read())
