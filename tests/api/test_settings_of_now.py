"""The settings of a topic are those of now, also if another process has created or changed the topic.

A reader takes no lock: a second `LogDir` of this process is another process to it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lastword
from lastword.errors import InvalidSettingError, SerializerError
from lastword.files import OsFiles
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import Call, RecordingFiles

TEXT = {"key_serializer": "str", "value_serializer": "str"}
Place = Callable[[str], lastword.LogDir]
_numbers = itertools.count()


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Open one log in a mode, as often as wanted."""
    where = f"memory://settings-of-now-{next(_numbers)}/log" if request.param == "bucket" else tmp_path / "d"
    opened: list[lastword.LogDir] = []

    def open_log(mode: str) -> lastword.LogDir:
        given = {"lastword_commit_linger_ms": 0, "log_cleaner_enable": False}
        if request.param == "directory":
            given["files"] = UNSYNCED
        opened.append(lastword.open(where, mode, **given))  # type: ignore[arg-type]
        return opened[-1]

    yield open_log
    for logs in opened:
        logs.close()


def pairs(topic: lastword.Topic) -> list[tuple]:
    return [(record.key, record.value) for record in topic.read()]


def test_a_topic_that_another_process_creates_has_its_serializers(place: Place) -> None:
    with place("a") as writer:
        writer.create_topic("first")
        reader = place("r")
        assert list(reader) == ["first"]
        for number, use in enumerate(
            (
                lambda name: reader[name],
                lambda name: next(topic for topic in reader.topics() if topic.name == name),
                lambda name: reader.topic(name, key_serializer="str"),
            )
        ):
            name = f"cities-{number}"
            writer.create_topic(name, cleanup_policy="compact", **TEXT).append("IT", "Rome")
            topic = use(name)
            assert pairs(topic) == [("IT", "Rome")]
            assert topic.record_at(0).value == "Rome"
            assert topic.config.cleanup_policy == {"compact"}


def test_changed_serializers_are_seen_or_refused(place: Place) -> None:
    with place("a") as writer:
        writer.create_topic("t", **TEXT).append("a", "1")
        reader = place("r")
        as_saved, as_named, as_bytes = (
            reader["t"],
            reader.topic("t", value_serializer="str"),
            reader.topic("t", key_serializer="bytes", value_serializer="bytes"),
        )
        assert [pairs(topic) for topic in (as_saved, as_named)] == [[("a", "1")]] * 2
        following = as_saved.read(follow=True, timeout=5)
        assert next(following).value == "1"
        writer.set_config("t", lastword_value_serializer="json")
        assert pairs(as_saved) == [("a", 1)] and as_saved.record_at(0).value == 1
        assert as_saved.records_at([0])[0].value == 1
        assert pairs(as_bytes) == [(b"a", b"1")]
        for refused in (lambda: pairs(as_named), lambda: as_named.record_at(0)):
            with pytest.raises(InvalidSettingError, match="are json"):
                refused()
        writer["t"].append("b", 2)
        with pytest.raises(InvalidSettingError, match="serializers"):
            next(following)


def test_a_topic_that_is_created_again_has_its_new_serializers(place: Place) -> None:
    with place("a") as writer:
        writer.create_topic("t", **TEXT).append("a", "1")
        reader = place("r")
        topic = reader["t"]
        assert pairs(topic) == [("a", "1")]
        writer.delete_topic("t")
        writer.create_topic("t", partitions=2, key_serializer="int64", value_serializer="json").append(7, [1])
        assert pairs(topic) == [(7, [1])]
        assert topic.partitions == 2


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_a_writer_of_a_bucket_takes_the_serializers_of_its_commit(place: Place) -> None:
    """They are those of the version that the commit changes, and not of the last one that was read."""
    with place("a") as one, place("a") as two:
        one.create_topic("t", **TEXT).append("a", "1")
        topic, named = two["t"], two.topic("t", **TEXT)
        one.delete_topic("t")
        one.create_topic("t", key_serializer="int64", value_serializer="json")
        assert topic.append(7, {"n": 1}).offset == 0
        with pytest.raises(SerializerError):
            topic.append("a", "1")
        with pytest.raises(InvalidSettingError):
            named.append("a", "1")
        assert pairs(one["t"]) == [(7, {"n": 1})]


def test_a_state_is_refused_after_its_serializers_were_changed(place: Place) -> None:
    with place("a") as writer:
        writer.create_topic("t", cleanup_policy="compact", **TEXT).append("a", "1")
        reader = place("r")
        state = reader.state("t")
        assert dict(state) == {"a": "1"}
        writer.delete_topic("t")
        given = {"key_serializer": "str", "value_serializer": "json"}
        writer.create_topic("t", cleanup_policy="compact", **given).append("a", [1])  # type: ignore[arg-type]
        for use in (state.refresh, lambda: state["a"]):
            with pytest.raises(InvalidSettingError, match="serializers"):
                use()
                state.get("a")
        assert dict(reader.state("t")) == {"a": [1]}


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_a_state_of_a_bucket_writes_nothing_under_other_serializers(place: Place) -> None:
    with place("a") as one, place("a") as two:
        one.create_topic("t", cleanup_policy="compact", **TEXT)
        state = two.state("t")
        state["a"] = "1"
        state.sync()
        one.delete_topic("t")
        one.create_topic("t", cleanup_policy="compact", key_serializer="str", value_serializer="json")
        with pytest.raises(InvalidSettingError, match="serializers"):
            state["a"] = "2"
            state.sync()
        assert pairs(one["t"]) == []
        state.close()


def test_a_creation_at_each_step_of_a_reader(tmp_path: Path) -> None:
    """Whatever the reader does when the topic comes: it has the topic with its serializers, or not at all."""
    seen = 0
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED, log_cleaner_enable=False) as writer:
        writer.create_topic("first")
        for at in range(30):
            name = f"cities-{at}"
            files, calls = RecordingFiles(OsFiles()), itertools.count()

            def step(call: Call, name: str = name, at: int = at, calls: Iterator[int] = calls) -> None:
                if next(calls) == at:
                    writer.create_topic(name, **TEXT).append("k", "v")

            with lastword.open(tmp_path / "d", files=files) as reader:
                files.fail = step
                if name in reader:
                    seen += 1
                    assert pairs(reader[name]) == [("k", "v")], at
                for topic in reader.topics():
                    if topic.name == name:
                        seen += 1
                        assert pairs(topic) == [("k", "v")], at
    assert seen > 5


def test_a_settings_file_that_appears_beside_lookups_is_read(tmp_path: Path) -> None:
    """While there is none, the names of the root say so; its edits in place are seen afterwards."""
    with lastword.open(tmp_path, "a") as writer:
        writer.create_topic("t", cleanup_policy="compact").append(b"k", b"1")
    (tmp_path / "lastword.toml").unlink()
    (tmp_path / "lastword.topic-t.toml").unlink()
    an_hour_ago = time.time() - 3600
    os.utime(tmp_path, (an_hour_ago, an_hour_ago))
    with lastword.open(tmp_path) as logs:
        topic = logs["t"]
        while not topic._views:  # names that have just changed are not kept
            assert topic.get(b"k") == b"1"
        for serializer, value in (("json", 1), ("str", "1")):
            text = f'"lastword.key.serializer" = "bytes"\n"lastword.value.serializer" = "{serializer}"\n'
            (tmp_path / "lastword.toml").write_text(f"[topics.t]\n{text}")
            assert topic.get(b"k") == value
            topic._views.clear()
            while not topic._views:
                assert topic.get(b"k") == value
