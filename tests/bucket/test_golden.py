"""Directories of real brokers in a bucket: read and cleaned as in a directory."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

import lastword
from lastword.bucket.commit import Bucket
from lastword.clock import ManualClock
from lastword.errors import NoPolicyError
from lastword.objects import open_store
from tests.golden import loader

STAGES = [
    *(("dir-clean", "data"), ("dir-clean-kafka28", "data"), ("dir-killed", "recovered")),
    *(
        (name, f"round{n}-before")
        for n, name in enumerate(["compact-idempotent-dr0", "tx-compact-dr0", "compact-v1-lz4-dr0"], 1)
    ),
]
BY_HAND = {"cleanup_policy": "compact", "delete_retention_ms": "1d", "min_compaction_lag_ms": 0}
"""The settings that decide what is removed, for topics whose cluster kept them in ZooKeeper."""
_numbers = count()


def put_directory(directory: Path, url: str) -> None:
    """Commit the files of a directory as they are."""
    bucket = Bucket(open_store(url))

    def put(files) -> None:
        for path in sorted(directory.rglob("*")):
            target = f"{bucket.url}/{path.relative_to(directory)}"
            if path.is_dir():
                files.mkdir(target)
            else:
                files.write_atomic(target, path.read_bytes())
                files.set_mtime(target, path.stat().st_mtime_ns // 1_000_000)

    bucket.transaction(put)


def records(logs: lastword.LogDir, view: str) -> list[tuple]:
    return [
        (record.topic, record.partition, record.offset, record.key, record.value, record.timestamp)
        for topic in logs
        for record in sorted(
            lastword_topic(logs, topic).read(view=view), key=lambda r: (r.partition, r.offset)
        )
    ]


def lastword_topic(logs: lastword.LogDir, name: str) -> lastword.Topic:
    return logs.topic(name, key_serializer="bytes", value_serializer="bytes")


def unknown_settings_remove_nothing(logs: lastword.LogDir) -> bool:
    """Return whether the settings are unknown, so that the default given to `open` does not count."""
    with pytest.raises(NoPolicyError, match=r"__cluster_metadata-0.* is not in"):
        logs.clean("new")
    return logs.clean() == [] and logs.expire() == []


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_it_is_read_and_cleaned_as_in_a_directory(name: str, stage: str, tmp_path: Path) -> None:
    loader.case(name).unpack(tmp_path, stage)
    url = f"memory://golden-{next(_numbers)}/log"
    put_directory(tmp_path / stage, url)
    shutil.copytree(tmp_path / stage, tmp_path / "copy")
    shown = []
    for place in (str(tmp_path / "copy"), url):
        clock = ManualClock(1_700_000_000_000)
        with lastword.open(
            place, "a", clock=clock, cleanup_policy="compact", lastword_commit_linger_ms=0
        ) as logs:
            before = [records(logs, view) for view in ("log", "newest")]
            if name == "dir-clean-kafka28":
                assert unknown_settings_remove_nothing(logs)
                for topic in logs:
                    logs.set_config(topic, **BY_HAND)
            rounds = [(r.topic, r.partition, r.records_kept, r.removed) for r in logs.clean(strategy="kafka")]
            assert rounds
            after = [records(logs, view) for view in ("log", "newest")]
            shown.append((before, rounds, after, {t: logs[t].bounds() for t in logs}))
            problems = logs.verify().problems
            shown[-1] = (*shown[-1], sorted(problem.code for problem in problems))
    assert shown[0] == shown[1]
    assert shown[0][0][1] == shown[0][2][1]
