"""Opening: modes, settings, several directories, topics."""

import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import lastword
from lastword import errors
from lastword.api import opening
from lastword.cli.main import run
from lastword.clock import ManualClock
from lastword.testing.unsynced import UNSYNCED
from tests.api.conftest import tree_digest


def test_modes(tmp_path):
    with pytest.raises(errors.NotALogDirError):
        lastword.open(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    for mode in ("w", "x", "rb", ""):
        with pytest.raises(errors.UsageError, match="neither"):
            lastword.open(tmp_path / "data", mode)
    lastword.open(tmp_path / "data", "a").close()
    with lastword.open(tmp_path / "data") as logs:
        assert logs.mode == "r" and logs.topics() == []
        with pytest.raises(errors.ReadOnlyError):
            logs.create_topic("t")
    with pytest.raises(errors.UsageError, match="closed"):
        logs.topics()


def test_a_directory_that_cannot_be_locked_frees_the_others(tmp_path):
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with lastword.open(paths[1], "a"), pytest.raises(errors.LogDirLockedError) as failed:
        lastword.open(paths, "a")
    lastword.open(paths, "a").close()
    assert failed.value  # not collected before, which would close them too


def test_settings_are_all_checked_before_anything_is_opened(tmp_path):
    with pytest.raises(errors.UnknownSettingError) as caught:
        lastword.open(tmp_path / "data", "a", segment_byte=1, log_cleaner_threads=0)
    assert "segment_bytes" in caught.value.message and "log_cleaner_threads" in caught.value.message
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_an_existing_topic_of_bytes_takes_the_serializers_of_the_call(tmp_path, place, clock):
    where = tmp_path / "data" if place == "directory" else f"memory://{tmp_path.name}/log"
    with lastword.open(where, "a", clock=clock) as logs:
        logs.create_topic("t")
        topic = logs.create_topic("t", key_serializer="str", value_serializer="json", exist_ok=True)
        topic.append("a", {"x": 1})
        assert [(r.key, r.value) for r in topic.read()] == [("a", {"x": 1})]
        assert logs["t"].schema.saved == ("bytes", "bytes")


@pytest.mark.parametrize(
    "policy", [{"compact", "delete"}, ["delete", "compact"], {"compact": 1, "delete": 1}]
)
def test_settings_that_toml_has_only_as_text(logs, policy):
    topic = logs.create_topic("t", cleanup_policy=policy, retention_ms=timedelta(days=7))
    assert topic.config.cleanup_policy == {"compact", "delete"}
    assert topic.config.retention_ms == 7 * 86_400_000
    logs.set_config("t", cleanup_policy=(name for name in ("compact",)))
    assert logs["t"].config.cleanup_policy == {"compact"}
    assert 'retention.ms = "7d"' in Path(logs.paths[0], "lastword.topic-t.toml").read_text()


def test_threads_change_settings_and_make_topics_at_the_same_time(tmp_path):
    numbers = range(8)

    def change(number):
        for value in numbers:
            logs.set_config(f"old{number}", segment_ms=1000 + value)

    def make(number):
        for value in numbers:
            logs.create_topic(f"new{number}-{value}", value_serializer="json")

    with lastword.open(tmp_path / "data", "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        for number in numbers:
            logs.create_topic(f"old{number}")
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call, number) for number in numbers for call in (change, make)]
        for call in calls:
            call.result()
    with lastword.open(tmp_path / "data") as logs:
        assert {logs[f"old{number}"].config.segment_ms for number in numbers} == {1007}
        new = [name for name in logs if name.startswith("new")]
        assert len(new) == 64 and {logs[name].schema.saved[1] for name in new} == {"json"}


def test_a_setting_may_be_given_by_its_dotted_name(logs):
    dotted = {"lastword.value.serializer": "json", "cleanup.policy": "compact"}
    topic = logs.create_topic("t", lastword_key_serializer="str", **dotted)
    topic.append("a", {"x": 1})
    logs.set_config("t", segment_bytes="1MiB", **{"segment.bytes": "2MiB"})
    assert logs["t"].config.segment_bytes == 2 << 20  # the last value counts


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_settings_of_a_new_topic_that_another_file_hides_are_refused(tmp_path, place, clock):
    where = tmp_path / "data" if place == "directory" else f"memory://{tmp_path.name}/log"
    other = tmp_path / "other.toml"
    other.write_text("")
    with lastword.open(where, "a", clock=clock, config=other) as logs:
        assert logs.create_topic("plain").config.cleanup_policy is None
        for make in (logs.state, lambda name: logs.create_topic(name, cleanup_policy="compact")):
            with pytest.raises(
                errors.UsageError, match=r"other\.toml.*cleanup\.policy = \"compact\" would not"
            ):
                make("users")
        assert list(logs) == ["plain"]
    lines = (
        'lastword.key.serializer = "str"\nlastword.value.serializer = "json"\ncleanup.policy = "compact"\n'
    )
    other.write_text(f"[topics.users]\n{lines}")
    with lastword.open(where, "a", clock=clock, config=other) as logs:
        logs.state("users")["ada"] = 1
    with lastword.open(where) as logs:  # the settings are also saved in the log
        assert dict(logs.state("users")) == {"ada": 1}


def test_callables_are_passed_again(tmp_path):
    reverse = (lambda value: value.encode()[::-1], lambda data: data[::-1].decode())
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.create_topic("t", key_serializer="str", value_serializer=reverse).append("k", "abc")
    with lastword.open(tmp_path / "data") as logs:
        assert [r.value for r in logs.topic("t").read()] == [b"cba"]
        assert [r.value for r in logs.topic("t", value_serializer=reverse).read()] == ["abc"]


def test_set_config(logs):
    topic = logs.create_topic("t")
    topic.set_config(cleanup_policy="compact")
    with pytest.raises(errors.KeyRequiredError):
        topic.append(None, b"v")
    topic.set_config(cleanup_policy=None)
    assert topic.config.cleanup_policy is None
    topic.append(None, b"v")
    with pytest.raises(errors.UnknownSettingError, match="nearest: cleanup_policy"):
        topic.set_config(cleanup_polcy="compact")
    logs.set_config(segment_bytes="32MiB")
    assert logs.topic("t").config.segment_bytes == 32 << 20


def test_a_closed_object_is_shown_as_text(tmp_path):
    """A cell that ended with one showed a traceback."""
    with lastword.open(tmp_path / "d", "a", log_cleaner_enable=False) as logs:
        state = logs.state("users")
        shown = [logs, logs["users"], state, state.restored[0]]
        cleaner = logs.cleaner
    assert [each._repr_html_() is None for each in shown] == [True, True, False, False]
    assert "closed" in repr(logs) and "closed" in repr(cleaner) and "users" in repr(shown[1])


def test_what_notebooks_show_is_escaped(tmp_path, logs):
    logs.create_topic("t", cleanup_policy="compact").append(b"k", b"v")
    for shown in (logs, logs.topic("t"), *logs.topic("t").describe(), logs.verify(), logs.state("t")):
        html = shown._repr_html_()
        assert html.startswith("<table>") and "t" in html
    from lastword.values import table_html

    assert "<script>" not in table_html("<script>", ("<script>",), [("<script>",)])


def test_it_is_a_mapping_of_its_topics(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        assert len(logs) == 0 and list(logs) == [] and logs and "users" not in logs
        logs.create_topic("users", 2, cleanup_policy="compact")
        logs.create_topic("orders")
        assert isinstance(logs, Mapping) and list(logs) == ["orders", "users"] and len(logs) == 2
        assert {name: topic.name for name, topic in logs.items()} == {"orders": "orders", "users": "users"}
        assert logs.get("none") is None and logs == logs and logs != dict(logs) and len({logs}) == 1
        assert "users" in logs and "user" not in logs and 5 not in logs
        assert logs["users"].name == "users" and logs["users"].partitions == 2
        assert logs.create_topic("users", exist_ok=True).partitions == 2
        with pytest.raises(errors.TopicExistsError):
            logs.create_topic("users")
        for unknown in (logs.__getitem__, logs.topic, logs.delete_topic):
            with pytest.raises(KeyError) as caught:
                unknown("user")
            assert isinstance(caught.value, errors.UnknownTopicError)
            assert "nearest: 'users'" in str(caught.value)
    with pytest.raises(errors.UsageError, match="is closed"):
        assert "users" in logs


def test_what_belongs_to_one_process_is_not_pickled(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        state = logs.state("users")
        state["ada"] = 1
        lease = state.topic.lease("reader")
        for handle in (logs, state, state.topic, state.topic.read(), logs.cleaner, lease):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                if handle is state and attempt is not pickle.dumps:
                    continue  # a copy of a state is a dict
                with pytest.raises(
                    errors.UsageError, match=f"a {type(handle).__name__} belongs to"
                ) as caught:
                    attempt(handle)
                assert "open" in caught.value.remedy
        for value in (*state.topic.read(), *state.restored, *logs.plan(), *state.topic.describe()):
            assert pickle.loads(pickle.dumps(value)) == value


def test_recovery_says_nothing_of_a_stop_in_mode_r(tmp_path):
    lastword.open(tmp_path / "data", "a").close()
    with lastword.open(tmp_path / "data", "a") as logs:
        assert [recovery.clean for recovery in logs.recovery] == [True]
    with lastword.open(tmp_path / "data") as logs:
        assert [recovery.clean for recovery in logs.recovery] == [None]


def test_a_second_open_in_one_process_names_the_first(tmp_path, monkeypatch):
    """As in a notebook whose cell runs twice."""
    monkeypatch.chdir(tmp_path)
    with lastword.open("data", "a") as logs:
        with pytest.raises(errors.LogDirLockedError) as caught:
            lastword.open("data", "a")
        line = str(caught.value).splitlines()[0]
        path = str(tmp_path / "data")
        holder = f"already open to append in this process ({os.getpid()}): LogDir({path!r}, 'a'), opened at "
        assert line.startswith(f"{path} is {holder}")
        assert re.search(r"test_open\.py:\d+$", line)
        assert "close()" in caught.value.remedy
        logs.create_topic("t")
    lastword.open("data", "a").close()


def test_a_change_of_the_working_directory_does_not_move_the_log(tmp_path, monkeypatch):
    """New files were looked for, and made, in a directory of that name in the new working directory."""
    (tmp_path / "elsewhere").mkdir()
    lastword.open(tmp_path / "elsewhere" / "data", "a").close()
    before = tree_digest(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    for path in ("data", "./elsewhere/../data/"):
        with lastword.open(path, "a", log_cleaner_enable=False, segment_bytes="2KiB") as logs:
            users = logs.state("users")
            monkeypatch.chdir(tmp_path / "elsewhere")
            users.clear()
            for n in range(100):
                users[str(n)] = "v" * 100
            logs.create_topic("other", exist_ok=True)
            logs.clean("users")
        assert len(lastword.open(tmp_path / "data").state("users")) == 100
        assert tree_digest(tmp_path / "elsewhere") == before
        monkeypatch.chdir(tmp_path)


def test_what_was_let_go_of_without_a_close_warns_and_can_be_opened_again(tmp_path):
    """The background threads hold no reference to the directory."""
    logs = lastword.open(tmp_path / "data", "a")
    logs.state("users")["ada"] = 1
    with pytest.warns(ResourceWarning, match=r"LogDir\(.*opened at .*test_open\.py:\d+, was not closed"):
        del logs
        logs = lastword.open(tmp_path / "data", "a")
    assert dict(logs.state("users")) == {"ada": 1}
    logs.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del logs
        lastword.open(tmp_path / "data").topics()  # mode "r" holds nothing that a close would free
        gc.collect()


@pytest.mark.parametrize("end", ["", "logs.close()", "del logs; import gc; gc.collect()"])
def test_what_is_left_open_at_the_end_of_the_process_is_named_once(tmp_path, end):
    program = f"import lastword; logs = lastword.open({str(tmp_path / 'data')!r}, 'a'); {end}"
    command = [sys.executable, "-W", "default", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("was not closed") == (0 if "close" in end else 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_below_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with lastword.open("~/data", "a") as logs:
        assert logs.paths == [str(tmp_path / "data")]
    for path, message in (("", "an empty path"), ("~nobody-of-that-name/x", "there is no such user")):
        with pytest.raises(errors.UsageError, match=message):
            lastword.open(path, "a")
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_timeout_waits_for_the_lock(tmp_path, monkeypatch):
    collections = []
    monkeypatch.setattr(opening.gc, "collect", lambda: collections.append(1))
    path = tmp_path / "data"
    holder = lastword.open(path, "a", log_cleaner_enable=False)
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(errors.LogDirLockedError):
        lastword.open(path, "a", timeout=5, clock=clock)
    assert clock.monotonic() - began == pytest.approx(5, abs=0.01)
    assert len(collections) == 6, "of 50 attempts"
    with pytest.raises(errors.LogDirLockedError):
        lastword.open(path, "a", clock=clock)
    assert clock.monotonic() - began == pytest.approx(5, abs=0.01), "no timeout: at once"

    class Closing(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            holder.close()

    with lastword.open(path, "a", timeout=5, clock=Closing()) as logs:
        logs.create_topic("users")
    for wrong in (-1, float("nan"), "soon", True, None):
        with pytest.raises(errors.UsageError, match="is not a time"):
            lastword.open(path, "a", timeout=wrong)


def test_commands_wait_for_the_lock(tmp_path, capsys):
    path = tmp_path / "data"
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        logs.create_topic("users", key_serializer="str", value_serializer="str")
        assert run(["append", str(path), "users", "a", "1", "--wait", "200ms"]) == 4
        assert "is already open to append in this process" in capsys.readouterr().err
        threading.Timer(0.5, logs.close).start()
        assert run(["append", str(path), "users", "a", "2", "--wait", "30s"]) == 0
    assert run(["append", str(path), "users", "a", "3", "--wait", "soon"]) == 2
    with lastword.open(path) as logs:
        assert [record.value for record in logs.topic("users").read()] == ["2"]


def test_copy_and_pull_take_the_wait_that_exit_code_4_recommends(tmp_path: Path) -> None:
    """The other commands that change a directory had it already."""
    source, target = tmp_path / "source", tmp_path / "target"
    with lastword.open(source, "a", log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="compact").append(b"k", b"v")
    holder = lastword.open(target, "a", log_cleaner_enable=False)
    assert run(["copy", str(source), str(target), "--wait", "200ms"]) == 4
    assert run(["pull", "127.0.0.1:1", "--to", str(target), "--wait", "soon"]) == 2
    timer = threading.Timer(0.3, holder.close)
    timer.start()
    assert run(["copy", str(source), str(target), "--wait", "60s"]) == 0
    timer.join()
    with lastword.open(target) as logs:
        assert [record.value for record in logs["users"].read()] == [b"v"]
