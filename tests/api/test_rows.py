"""Many records in one call: the `Record`s equal those read singly, are frozen, and are returned singly."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api.record import Record
from lastword.partition import scan

COUNT = 3000


def filled(root: Path, **config: Any) -> lastword.LogDir:
    logs = lastword.open(root, "a", log_cleaner_enable=False)
    topic = logs.create_topic("a", cleanup_policy="delete", **config)
    topic.extend(
        Record(
            "other",
            9,
            9,
            1_750_000_000_000 + n,
            "create",
            None if n % 7 == 3 else b"key-%d" % n,
            None if n % 5 == 1 else b"v" * (n % 40),
            (("h", b"x"), ("none", None)) if n % 11 == 0 else (),
            n % 7 != 3,
            n % 5 == 1,
        )
        for n in range(COUNT)
    )
    return logs


@pytest.mark.parametrize(
    "config",
    [{}, {"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}],
    ids=["plain", "zstd", "log-append"],
)
def test_the_same_records_as_one_by_one(
    tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "logs", **config) as logs:
        topic = logs.topic("a")
        assert not scan.is_short(logs.dirs.views("a")[0], 5, COUNT - 5)
        many = list(topic.read(5, COUNT - 5))
        monkeypatch.setattr(scan, "is_short", lambda *_: True)
        assert many == list(topic.read(5, COUNT - 5))
    assert [record.offset for record in many] == list(range(5, COUNT - 5))


def test_they_are_records_and_frozen(tmp_path: Path) -> None:
    with filled(tmp_path / "logs") as logs:
        record = next(logs.topic("a").read())
    assert type(record) is Record
    assert hash(record) == hash(Record("a", 0, 0, record.timestamp, "create", b"key-0", b"", record.headers))
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(FrozenInstanceError):
        record.offset = 1  # type: ignore[misc]
