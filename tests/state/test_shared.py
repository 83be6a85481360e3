"""Several states of one topic, beside other writers of it: one set of values, and no update is lost."""

from __future__ import annotations

import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword import errors
from lastword.api.contents import Contents
from lastword.cli.main import run
from lastword.records.batch import BatchBuilder
from tests.support.threads import together
from tests.transactions import end_transaction


def transactional(logs: Any, *pairs: tuple[bytes, bytes | None], producer: int = 7) -> None:
    builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    for key, value in pairs:
        builder.append(logs.dirs.clock.now_ms(), key, value)
    logs.dirs.log("t", 0).append_batch(builder.build())


def test_a_position_is_a_value(logs: Any) -> None:
    state = logs.state("t")
    state.update(a=1, b=2)
    position = state.position
    reader = logs["t"].read()
    next(reader)
    at = reader.position
    list(reader)
    state["c"] = 3
    assert (position, at) == ({0: 2}, {0: 1}) and [r.key for r in logs["t"].read(at)] == ["b", "c"]
    state.position[0] = 99
    assert state.position == {0: 3} and state.incr("a") == 2 and state.position == {0: 4}


def test_a_busy_writer_does_not_keep_a_read_waiting(logs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read shows what was appended before it, and does not wait for a pause of the writer."""
    state, taken = logs.state("t"), []
    take = Contents._take

    def busy(contents: Contents, tail: Any) -> None:
        take(contents, tail)
        taken.append(tail)
        assert len(taken) < 10
        logs["t"].append("other", len(taken))

    logs["t"].append("a", 1)
    monkeypatch.setattr(Contents, "_take", busy)
    assert state["a"] == 1 and len(taken) == 1
    monkeypatch.undo()
    assert dict(state) == {"a": 1, "other": 1}


def test_two_states_are_one_mapping(logs: Any) -> None:
    a, b = logs.state("t"), logs.state("t")
    a["u"] = ["book"]
    assert b.setdefault("u", []) == ["book"] and len(b) == 1
    with logs.state("t") as c:
        del c["u"]
    with pytest.raises(errors.UsageError, match="state of t is closed"):
        c.get("u")
    assert "u" not in a and not b


def test_a_state_shows_what_its_process_appends_otherwise(logs: Any) -> None:
    state, topic = logs.state("t", partitions=2), logs["t"]
    topic.append("a", 1)
    assert state["a"] == 1 and state.incr("a") == 2
    topic.extend([("b", 1), ("c", 1), ("a", None)])
    assert dict(state) == {"b": 1, "c": 1} and state.refresh() == 0
    transactional(logs, (b"x", b"5"))
    assert "x" not in state
    end_transaction(logs.dirs.log("t", 0), 7, 0, True)
    assert state["x"] == 5
    assert sum(state.position.values()) == sum(end for _, end in topic.bounds().values())


def test_a_state_loses_what_is_trimmed_or_cut(logs: Any) -> None:
    state = logs.state("t")
    for number in range(6):
        state[f"k{number}"] = number
    logs.dirs.log("t", 0).roll()
    logs["t"].trim(before=4)
    assert sorted(state) == ["k4", "k5"]
    logs.dirs.log("t", 0).truncate_to(5)
    logs["t"].append("new", 1)
    assert dict(state) == {"k4": 4, "new": 1}


@pytest.mark.parametrize("memory", ["values", "none"])
@pytest.mark.parametrize("new", [1, 2, 3])
def test_an_open_state_shows_a_topic_that_was_created_again(logs: Any, new: int, memory: str) -> None:
    """The new log is shorter than the position, as long, and longer, before the state is used again."""
    state = logs.state("t", memory=memory)
    state.update(a=1, b=1)
    logs.delete_topic("t")
    with pytest.raises(errors.UnknownTopicError):
        len(state)
    logs.create_topic("t", cleanup_policy="compact", key_serializer="str", value_serializer="json")
    logs["t"].extend((f"new{number}", number) for number in range(new))
    assert dict(state.items()) == {f"new{number}": number for number in range(new)}
    assert state.position == {0: new} and state.incr("n") == 1 and "a" not in state


@pytest.mark.parametrize("memory", ["values", "none"])
def test_a_change_runs_again_if_the_log_has_another_value(logs: Any, memory: str) -> None:
    state = logs.state("t", memory=memory)
    state["n"] = 1
    runs = []

    def double(value: int) -> int:
        runs.append(value)
        if len(runs) == 1:
            logs["t"].append("n", 10)
        return value * 2

    assert state.change("n", double) == 20 and runs == [1, 10]
    state["list"] = []
    with pytest.raises(errors.BusyError, match="another writer"), state.edit("list") as value:
        value.append(1)
        logs["t"].append("list", [2])
    assert state["list"] == [2]


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer", "default", "memory"])
def test_other_arguments_are_refused_and_name_the_first(logs: Any, name: str) -> None:
    logs.create_topic("t", cleanup_policy="compact")
    first: dict[str, Any] = {"key_serializer": "str", "value_serializer": "json", "memory": "1MiB"}
    state = logs.state("t", **first, default=lambda: 0)
    other = {"key_serializer": "bytes", "value_serializer": "str", "default": int, "memory": 5}[name]
    with pytest.raises(errors.UsageError, match=f"{name}=.*, since {__file__}:") as caught:
        logs.state("t", **{name: other})
    assert "close the first" in caught.value.remedy
    second = logs.state("t")  # what is left out is that of the first
    assert second["absent"] == 0 and logs.state("t", **first)["absent"] == 0
    state.close()
    second.close()
    assert logs.state("t", **{**first, name: other}) == {}


def test_the_last_state_frees_the_values(logs: Any) -> None:
    one, two = logs.state("t"), logs.state("t")
    values = weakref.ref(logs._states["t"])
    one["a"] = 1
    one.close()
    assert two["a"] == 1 and values() is not None
    two.close()
    gc.collect()
    assert values() is None and dict(logs.state("t")) == {"a": 1}


def test_states_of_an_end_or_a_snapshot_are_not_shared(logs: Any, tmp_path: Path) -> None:
    state = logs.state("t")
    state["a"] = 1
    logs.restore("t", to=tmp_path / "t.parquet")
    old, from_file = logs.state("t", end=1), logs.state("t", snapshot=tmp_path / "t.parquet")
    assert state.incr("a") == 2 and from_file.incr("a") == 3 and state.incr("a") == 4
    assert dict(old) == {"a": 1} and dict(state) == dict(from_file) == {"a": 4}
    state.close()
    gc.collect()
    assert len(logs._states) == 0 and from_file["a"] == 4


def test_a_closed_log_answers_nothing(tmp_path: Path) -> None:
    logs = lastword.open(tmp_path / "data", "a")
    state = logs.state("t")
    state["a"] = 1
    pid = os.fork()
    if pid == 0:
        try:
            state.get("a")
        except errors.UsageError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    logs.close()
    for call in (lambda: state["a"], lambda: state.get("a"), lambda: len(state), lambda: list(state.items())):
        with pytest.raises(errors.UsageError, match="is closed"):
            call()


def test_a_topic_that_several_threads_open_is_created_once(logs: Any) -> None:
    found = together(*[lambda: logs.state("new", partitions=3)] * 4)
    found[0]["a"] = 1
    assert [dict(state) for state in found] == [{"a": 1}] * 4


def test_a_state_over_an_open_transaction_keeps_its_own_changes(tmp_path: Path) -> None:
    """It was restored up to the last stable offset, so each life counted from 5 again."""
    for life in range(3):
        with lastword.open(tmp_path / "data", "a") as logs:
            if not life:
                logs.state("t").update(n=5)
                transactional(logs, (b"m", b"1"), (b"n", b"100"))
                logs["t"].append("other", 1)
            state = logs.state("t")
            assert state.incr("n") == 6 + life and state["other"] == 1 and "m" not in state
            assert state.position == {0: 1}, "the records from 1 on are not all decided"
    with lastword.open(tmp_path / "data") as beside:
        reading = beside.state("t")
        assert dict(reading) == {"n": 8, "other": 1}
        with lastword.open(tmp_path / "data", "a") as logs:
            state = logs.state("t")
            end_transaction(logs.dirs.log("t", 0), 7, 0, True)
            assert dict(state) == {"n": 8, "m": 1, "other": 1}, "a newer record of n stays the newest"
            assert reading.refresh() and dict(reading) == dict(state) and state.position == {0: 8}


def test_commands_name_the_transaction_that_holds_values_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.state("t")["n"] = 5
        transactional(logs, (b"m", b"1"))
        logs["t"].append("n", 6)
    held = "t-0: offsets 1 to 2 are held back until their transactions end: producer id 7 from offset 1 on"
    for command in (
        ["restore", "data", "t", "t.jsonl"],
        ["restore", "data", "t", "-"],
        ["read", "data", "t", "--view", "newest"],
    ):
        words = [str(tmp_path / word) if word in ("data", "t.jsonl") else word for word in command]
        for more in ([], ["--json"]):
            assert run([*words, *more]) == 0
            shown = capsys.readouterr().err
            if more:
                assert held in [json.loads(line).get("message") for line in shown.splitlines()]
            else:
                assert f"warning: {held}\n" in shown


def test_sparks_view_names_the_transaction_that_holds_values_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from lastword.spark.options import parse_read
    from lastword.spark.splits import choose

    with lastword.open(tmp_path / "data", "a") as logs:
        logs.state("t")["n"] = 5
        transactional(logs, (b"m", b"1"))
        logs["t"].append("n", 6)
    options = {"path": str(tmp_path / "data"), "subscribe": "t"}
    for view, said in (("log", 0), ("newest", 1), ("changes", 1)):
        caplog.clear()
        assert [range_.end for range_ in choose(parse_read({**options, "view": view}))] == [1]
        assert sum("held back until their transactions end" in message for message in caplog.messages) == said
