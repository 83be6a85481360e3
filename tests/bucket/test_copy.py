"""`lastword.copy` between directories and logs in buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastword
from lastword.api import copying
from lastword.api.bucket_dirs import BucketDirs
from lastword.errors import (
    DataError,
    InconsistentTopicIdError,
    NoPolicyError,
    UnknownTopicError,
    UsageError,
)
from lastword.segment import names

JSON = {"key_serializer": "str", "value_serializer": "json"}


def opened(log: object, mode: str = "a") -> lastword.LogDir:
    given = {"log_cleaner_enable": False, "lastword_commit_linger_ms": 0} if mode == "a" else {}
    return lastword.open(log, mode, **given)  # type: ignore[arg-type]


def content(log: object) -> list:
    with opened(log, "r") as logs:
        assert logs.verify().ok
        return [
            (topic.name, r.partition, r.offset, r.timestamp, r.key, r.value)
            for topic in logs.topics()
            for r in topic.read()
        ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as logs:
        users = logs.create_topic("users", 2, segment_bytes="2KiB", cleanup_policy="compact", **JSON)
        for first in range(0, 600, 50):
            users.extend((f"k{n if n > 300 else n % 50}", {"n": n}) for n in range(first, first + 50))
        users.append("named", {}, producer="loader", sequence=1)
        users.lease("replica", position=3)
        logs.create_topic("events", cleanup_policy="delete", retention_ms=-1).append(b"a", b"b")
        logs["events"].trim(1)
        logs["events"].append(b"c", b"d")
    return tmp_path / "data"


def test_there_and_back(data: Path, url: str, tmp_path: Path) -> None:
    before = content(data)
    back = tmp_path / "back"
    for source, target in ((data, url), (url, f"{url}-2"), (f"{url}-2", back), (back, tmp_path / "again")):
        results = lastword.copy(source, target, verify=True)
        assert [(r.topic, r.partition) for r in results] == [("events", 0), ("users", 0), ("users", 1)]
        assert all(r.verified and r.copied_segments and not r.kept_segments for r in results)
        assert content(target) == before
        again = lastword.copy(source, target, verify=True)
        assert sum(r.copied_bytes + r.copied_segments + r.removed_segments for r in again) == 0
        assert [r.log_end for r in again] == [r.log_end for r in results]
    with opened(back) as logs:
        assert logs.recovery[0].clean
        users, events = logs["users"], logs["events"]
        assert users.config.segment_bytes == 2048 and users.config.cleanup_policy == {"compact"}
        assert {(lease.name, lease.position) for lease in users.leases()} == {("replica", 3)}
        assert users.last_sequence("loader") == 1
        assert events.bounds() == {0: (1, 2)} and events.config.retention_ms == -1
        users.append("named", {}, producer="loader", sequence=1)
        assert sum(end for _, end in users.bounds().values()) == 601
        assert logs.dirs.topic_id("users") == opened(data, "r").dirs.topic_id("users")


def test_a_second_copy_sends_what_is_new_or_cleaned(data: Path, url: str) -> None:
    lastword.copy(data, url)
    with opened(data) as logs:
        assert logs.clean("users")
        logs["users"].append("new", {}, partition=1)
        logs["users"].set_config(segment_bytes=None, retention_bytes="1GiB")
    results = lastword.copy(data, url, "users", verify=True)
    assert all(r.removed_segments and r.kept_segments and r.copied_segments for r in results)
    assert content(url) == content(data)
    with opened(url, "r") as logs:
        assert logs["users"].config.retention_bytes == 1 << 30
        assert not logs.settings.is_set("segment.bytes", "users")


def test_partitions_that_the_source_has_added(data: Path, url: str) -> None:
    lastword.copy(data, url)
    with opened(data) as logs:
        topic_id = logs.dirs.topic_id("users")
        logs.dirs.directories[0].add_partitions("users", [2], topic_id)
        logs["users"].append("x", {}, partition=2)
    lastword.copy(data, url)
    assert content(url) == content(data)


def test_a_stopped_copy_goes_on(data: Path, url: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(BucketDirs, "most_commit_bytes", 4_000)
    for target in (url, tmp_path / "target"):
        copies = 0
        while copies < 50:
            copies += 1
            calls = iter(range(1_000))
            lastword.copy(data, target, stop=lambda calls=calls: next(calls) >= 20)  # type: ignore[misc]
            if content(target) == content(data):
                break
        assert 1 < copies < 50
    with opened(url, "r") as logs:
        assert not any(names.COPY in path for path, _ in logs.dirs.newest.files())  # type: ignore[attr-defined]


def test_a_segment_that_is_larger_than_a_commit(tmp_path: Path, url: str, monkeypatch) -> None:
    monkeypatch.setattr(BucketDirs, "most_commit_bytes", 1_000)
    rounds, copy_round = iter(range(10)), copying.Copying.round
    monkeypatch.setattr(copying.Copying, "round", lambda *given: (next(rounds), copy_round(*given))[1])
    with opened(tmp_path / "large") as logs:
        topic = logs.create_topic("users")
        for size in (10, 5_000, 10, 5_000):
            topic.append(b"k", bytes(size))
            logs.dirs.directories[0].roll()
    (result,) = lastword.copy(tmp_path / "large", url)
    assert result.copied_segments == 4  # and one that is empty
    assert content(url) == content(tmp_path / "large")


def test_a_source_that_is_cleaned_meanwhile(data: Path, url: str) -> None:
    calls = 0

    def clean_once() -> bool:
        nonlocal calls
        calls += 1
        if calls == 9:
            with opened(data) as logs:
                assert logs.clean("users")
        return False

    lastword.copy(data, url, "users", stop=clean_once, verify=True)
    with opened(url, "r") as logs:
        assert [(r.partition, r.offset) for r in logs["users"].read()] == [
            (r.partition, r.offset) for r in opened(data, "r")["users"].read()
        ]


def test_a_damaged_copy_is_found_and_sent_again(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    lastword.copy(data, target)
    log = min((target / "users-0").glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    facts = log.stat()
    with log.open("r+b") as file:
        file.write(raw)
    assert log.stat().st_ino == facts.st_ino
    with pytest.raises(DataError, match="differs from the source"):
        lastword.copy(data, target, verify=True)
    lastword.copy(data, target, verify=True)
    assert content(target) == content(data)


def test_refusals(data: Path, url: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError):
        lastword.copy(data, tmp_path / "target", ["nothing"])
    assert not (tmp_path / "target").exists()
    with pytest.raises(UsageError, match="the same log"):
        lastword.copy(data, f"{data}/")
    for options in ({"storage_options": {"region": "x"}}, {"source_storage_options": {"region": "x"}}):
        with pytest.raises(UsageError, match="storage_options are for a"):
            lastword.copy(data, tmp_path / "target", **options)
    assert not (tmp_path / "target").exists()
    with opened(url) as logs:
        logs.create_topic("users")
    with pytest.raises(InconsistentTopicIdError, match="another topic users") as caught:
        lastword.copy(data, url)
    assert [result.topic for result in caught.value.results] == ["events"]  # type: ignore[attr-defined]
    lastword.copy(data, tmp_path / "target")
    with opened(tmp_path / "target") as logs:
        logs["users"].append("own", {}, partition=0)
    with pytest.raises(UsageError, match="records of its own") as refused:
        lastword.copy(data, tmp_path / "target")
    assert [result.partition for result in refused.value.results] == [0, 1]  # type: ignore[attr-defined]


def test_an_empty_policy_and_unknown_settings_remove_nothing_from_a_copy(tmp_path: Path, url: str) -> None:
    with opened(tmp_path / "data") as logs:
        for name in ("kept", "theirs"):
            topic = logs.create_topic(name, cleanup_policy="none", segment_bytes="1KiB")
            for number in range(40):
                topic.append(b"k", b"%d" % number * 50, timestamp=1)
    text = (tmp_path / "data" / "meta.properties").read_text()
    (tmp_path / "data" / "meta.properties").write_text("#\n#Sat Nov 28 2026\n" + text)  # as of a broker
    (tmp_path / "data" / "lastword.topic-theirs.toml").unlink()
    with opened(url) as logs:
        logs.set_config(None, cleanup_policy="compact,delete", retention_ms=1)
    for target in (url, tmp_path / "there"):
        lastword.copy(tmp_path / "data", target)
        with opened(target) as logs:
            assert logs.clean() == logs.expire() == []
            for name in ("kept", "theirs"):
                assert logs[name].config.cleanup_policy == frozenset()
                assert len(list(logs[name].read())) == 40
                with pytest.raises(NoPolicyError):
                    logs.clean(name)
