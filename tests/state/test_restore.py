"""A restored file: its content, and a state that starts from it."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lastword
from lastword import errors
from lastword.api.serializers import field_json
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from lastword.state import snapshot_file
from tests.support.exhaustive import few

FORMATS = ("parquet", "arrow", "jsonl")


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / f"users.{request.param}"


def test_a_state_from_a_file_and_the_tail_is_the_state_from_the_log(logs, path):
    users = logs.state("users", partitions=3)
    users.update({f"k{i}": {"n": i} for i in range(50)})
    del users["k7"]
    restored = logs.restore("users", to=path)
    assert sum(entry.keys for entry in restored) == 49 and {entry.partition for entry in restored} == {
        0,
        1,
        2,
    }
    users["k8"] = {"n": "newer"}
    del users["k9"]
    users["new"] = None
    started = logs.state("users", snapshot=path)
    assert dict(started) == dict(users) and started.position == logs.state("users").position
    assert sum(entry.keys for entry in started.restored) == 49
    started["k1"] = {"n": "after"}
    assert logs.state("users")["k1"] == {"n": "after"}


def test_only_the_tail_is_read_from_the_log(logs, path, monkeypatch):
    users = logs.state("users")
    users.update({"ada": 1, "bob": 2})
    logs.restore("users", to=path)
    users["cyd"] = 3
    asked = []
    import lastword.api.contents as module

    inner = module.newest_pairs
    monkeypatch.setattr(
        module,
        "newest_pairs",
        lambda range_, **more: asked.append(range_.start) or inner(range_, **more),
    )
    assert dict(logs.state("users", snapshot=path)) == {"ada": 1, "bob": 2, "cyd": 3}
    assert asked == [2]


def test_a_table_for_other_tools(logs, tmp_path):
    users = logs.state("users")
    users.update({"ada": {"city": "London"}, "bob": None})
    users["ada"] = {"city": "Turin"}
    logs.restore("users", to=tmp_path / "users.parquet")
    rows = pq.read_table(tmp_path / "users.parquet").to_pylist()
    assert [(r["key"], r["value"], r["offset"], r["partition"]) for r in rows] == [
        ("bob", b"null", 1, 0),
        ("ada", b'{"city":"Turin"}', 2, 0),
    ]
    logs.restore("users", to=tmp_path / "users.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "users.jsonl").read_text().splitlines()]
    assert [line.get("value") for line in lines[:-1]] == [{"base64": "bnVsbA=="}, {"city": "Turin"}]
    assert lines[-1]["end_offsets"] == {"0": 3}


def test_numbers_that_json_lacks_are_base64_in_lines(logs, tmp_path):
    values = logs.state("values", value_serializer="float64")
    values.update({"inf": float("inf"), "low": float("-inf"), "nan": float("nan"), "one": 1.0})
    path = tmp_path / "values.jsonl"
    logs.restore("values", to=path)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert [line.get("value") for line in lines[:-1]] == [
        {"base64": "f/AAAAAAAAA="},
        {"base64": "//AAAAAAAAA="},
        {"base64": "f/gAAAAAAAA="},
        1.0,
    ]
    assert [field_json(record.value, "float64") for record in raw(logs, "values")] == [
        line.get("value") for line in lines[:-1]
    ]
    assert str(dict(logs.state("values", snapshot=path))) == str(dict(values))


def test_nan_is_in_no_bounds_of_a_parquet_file(logs, tmp_path):
    """DataFusion takes a column with equal bounds for a constant, and DuckDB skips rows by them."""
    datafusion, duckdb = pytest.importorskip("datafusion"), pytest.importorskip("duckdb")
    path = str(tmp_path / "values.parquet")
    logs.state("values", value_serializer="float64").update({"a": 9.0, "b": math.nan, "c": 9.0})
    logs.restore("values", to=path)
    values = datafusion.SessionContext().read_parquet(path).to_pydict()["value"]
    assert list(map(str, values)) == ["9.0", "nan", "9.0"]
    assert duckdb.sql(f"SELECT key FROM '{path}' WHERE value > 10").fetchall() == [("b",)]
    bounds = pq.read_metadata(path).row_group(0).column(2).statistics
    assert (bounds.min, bounds.max) == (0, 2)


def raw(logs, topic):
    return logs.topic(topic, key_serializer="bytes", value_serializer="bytes").read()


def test_as_of_an_earlier_end(logs, path):
    users = logs.state("users")
    users["ada"] = 1
    users["ada"] = 2
    logs.restore("users", to=path, end=1)
    assert dict(logs.state("users", snapshot=path)) == {"ada": 2}
    assert dict(logs.state("users", snapshot=path, end=1)) == {"ada": 1}
    logs.restore("users", to=path)
    with pytest.raises(errors.SnapshotRefusedError, match="ends at offset 2"):
        logs.state("users", snapshot=path, end=1)


def test_what_a_cleaning_forgot_cannot_be_restored(logs, path):
    users = logs.state("users")
    for value in (1, 2, 3):
        users["ada"] = value
    logs.clean("users")
    with pytest.raises(errors.OffsetOutOfRangeError, match="the newest values below 1 are lost"):
        logs.restore("users", to=path, end=1)
    assert [entry.name for entry in path.parent.iterdir()] == ["data"]


def test_a_deleted_key_does_not_come_back_from_a_file(logs, path, clock: ManualClock):
    """The tombstone above the file's end is gone, so the log has no record of the delete."""
    users = logs.state("users")
    users["ada"] = 1
    logs.restore("users", to=path)
    del users["ada"]
    users["bob"] = 2
    logs.clean("users")
    clock.advance(25 * 3_600_000)
    logs.clean("users")
    logs.clean("users")
    assert dict(logs.state("users")) == {"bob": 2}
    assert [r.key for r in logs.topic("users").read()] == ["bob"]
    with pytest.raises(errors.SnapshotRefusedError, match="tombstone"):
        logs.state("users", snapshot=path)


def test_a_file_of_another_topic_or_an_earlier_life_is_refused(logs, path):
    logs.state("users")["ada"] = 1
    logs.state("others")["ada"] = 2
    logs.restore("users", to=path)
    with pytest.raises(errors.SnapshotRefusedError, match="holds users, not others"):
        logs.state("others", snapshot=path)
    logs.delete_topic("users")
    logs.state("users").update({"x": 1, "y": 2})
    with pytest.raises(errors.SnapshotRefusedError, match="created again"):
        logs.state("users", snapshot=path)


def test_a_file_below_the_log_start_is_refused(logs, path):
    users = logs.state("users")
    users["ada"] = 1
    logs.restore("users", to=path)
    users["bob"] = 2
    users["cyd"] = 3
    users.topic.trim(2)
    with pytest.raises(errors.SnapshotRefusedError, match="starts at 2"):
        logs.state("users", snapshot=path)


def test_a_damaged_or_unfinished_file_is_told(logs, tmp_path):
    users = logs.state("users")
    users["ada"] = 1
    for name, damage in (
        ("a.jsonl", lambda data: data[: data.rindex(b"{")]),
        ("b.parquet", lambda data: data[:-20]),
        ("c.arrow", lambda data: data[: len(data) // 2]),
        ("d.jsonl", lambda data: data.replace(b'"record"', b'"record')),
        ("row.jsonl", lambda data: b"[" * 100_000 + b"\n" + data),
        ("ends.jsonl", lambda data: data + b"[" * 100_000),
        ("time.jsonl", lambda data: re.sub(rb'"complete_ms":\d+', b'"complete_ms":1e999', data)),
    ):
        file = tmp_path / name
        logs.restore("users", to=file)
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(errors.CorruptFileError):
            logs.state("users", snapshot=file)
    pq.write_table(pa.table({"key": ["a"], "value": ["b"]}), tmp_path / "e.parquet")
    with pytest.raises(errors.UsageError, match="was not written by"):
        logs.state("users", snapshot=tmp_path / "e.parquet")
    with pytest.raises(errors.UsageError, match="no file"):
        logs.state("users", snapshot=tmp_path / "f.parquet")


def test_a_file_that_cannot_be_made_is_told_with_its_remedy(logs, tmp_path):
    logs.state("users")["ada"] = 1
    (tmp_path / "there.parquet").mkdir()
    for to, words in (
        (tmp_path / "no" / "users.arrow", "no directory"),
        (tmp_path / "there.parquet", "is a dir"),
    ):
        with pytest.raises(errors.UsageError, match=words) as caught:
            logs.restore("users", to=to)
        assert caught.value.remedy


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_byte_that_changed_is_told_or_changes_nothing(logs, tmp_path, form):
    """The error is never one of Arrow's; a Parquet file returns no value that was not restored."""
    path = tmp_path / f"users.{form}"
    users = logs.state("users")
    users.update({f"k{n}": f"value {n}" for n in range(20)})
    logs.restore("users", to=path)
    sound = path.read_bytes()
    refused = 0
    for at in range(0, len(sound), 1 + len(sound) // 60):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        try:
            restored = dict(logs.state("users", snapshot=path))
            assert form == "arrow" or restored == dict(users)
        except errors.LastwordError:
            refused += 1
    assert refused > 5
    for size in range(0, len(sound), 1 + len(sound) // 10):
        path.write_bytes(sound[:size])
        with pytest.raises(errors.CorruptFileError):
            logs.audit("users", delivered=path)


def test_a_restore_that_fails_leaves_the_old_file(logs, tmp_path, monkeypatch):
    users = logs.state("users")
    users["ada"] = 1
    file = tmp_path / "users.parquet"
    logs.restore("users", to=file)
    before = file.read_bytes()
    users["ada"] = 2
    monkeypatch.setattr(snapshot_file.SnapshotWriter, "write", lambda self, batch: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        logs.restore("users", to=file)
    assert file.read_bytes() == before and list(tmp_path.glob("*part*")) == []


@settings(max_examples=few(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers())),
    after=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers())),
    form=st.sampled_from(FORMATS),
)
def test_any_history(tmp_path_factory, before, after, form):
    root = tmp_path_factory.mktemp("any")
    model: dict[str, int] = {}
    with lastword.open(root / "data", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "t", 2, key_serializer="str", value_serializer="json", cleanup_policy="compact"
        )

        def write(changes):
            for key, value in changes:
                topic.append(str(key), value)
                model.pop(str(key), None)
                if value is not None:
                    model[str(key)] = value

        write(before)
        logs.restore("t", to=root / f"t.{form}")
        write(after)
        assert dict(logs.state("t", snapshot=root / f"t.{form}")) == model


# ---------------------------------------------------------------- does the log continue the file?


def test_what_was_trimmed_is_not_in_a_state_from_a_file(logs, path):
    """A state that started from the file used to keep keys whose records are below the log start."""
    users = logs.state("users")
    users.update({f"k{n}": n for n in range(10)})
    logs.dirs.log("users", 0).roll()
    users.update({f"k{n}": -n for n in range(5)})
    logs.restore("users", to=path)
    users["new"] = 1
    logs.topic("users").trim(before=8)
    whole = dict(logs.state("users"))
    assert sorted(whole) == ["k0", "k1", "k2", "k3", "k4", "k8", "k9", "new"]
    assert dict(logs.state("users", snapshot=path)) == whole


def test_a_file_that_reaches_above_a_cut_is_refused(logs, path):
    users = logs.state("users")
    users.update({f"k{n}": n for n in range(10)})
    logs.restore("users", to=path)
    logs.dirs.log_dir("users", 0).truncate("users", 0, 6)
    logs.topic("users").extend({f"other{n}": n for n in range(10)})
    with pytest.raises(errors.SnapshotRefusedError, match="users-0 was cut at 6 since"):
        logs.state("users", snapshot=path)
    logs.restore("users", to=path)
    assert dict(logs.state("users", snapshot=path)) == dict(logs.state("users"))


def test_a_file_that_reaches_above_a_power_cut_is_refused(tmp_path, clock, path):
    """Recovery notes the log end before anything is appended; the log then grew past the file."""
    data = tmp_path / "data"
    logs = lastword.open(data, "a", clock=clock)
    users = logs.state("users")
    users["kept"] = 1
    log = logs.dirs.log("users", 0)
    kept = log.active.size
    users.update({f"k{n}": n for n in range(5)})
    logs.restore("users", to=path)
    file = log.active.file
    logs.dirs.directories[0].abandon()
    with Path(file).open("r+b") as handle:  # a power cut may leave this: nothing of it was synced
        handle.truncate(kept)
    with lastword.open(data, "a", clock=clock) as logs:
        assert dict(logs.state("users")) == {"kept": 1}
        with pytest.raises(errors.SnapshotRefusedError, match="above log end 1"):
            logs.state("users", snapshot=path)
        logs.topic("users").extend({f"other{n}": n for n in range(20)})
        with pytest.raises(errors.SnapshotRefusedError, match="cut at 1 since, perhaps by a power cut"):
            logs.state("users", snapshot=path)
        logs.restore("users", to=path)
    with lastword.open(data, "a", clock=clock) as logs:  # after a clean stop the file is accepted
        logs.state("users")["more"] = 1
        assert dict(logs.state("users", snapshot=path)) == dict(logs.state("users"))


def test_a_kill_that_loses_nothing_refuses_no_file(tmp_path, clock, path):
    data = tmp_path / "data"
    for round_ in range(3):
        logs = lastword.open(data, "a", clock=clock)
        users = logs.state("users")
        if round_:
            assert dict(logs.state("users", snapshot=path)) == dict(users)
        users.update({f"k{n}": [round_, n] for n in range(5)})
        logs.restore("users", to=path)
        logs.dirs.directories[0].abandon()
        logs.dirs.closed = True


def test_many_cuts_are_kept_as_their_number_and_the_lowest():
    from lastword.partition.removal_log import EVERYTHING, RemovalLog

    cuts = [(n * 7919) % 1000 for n in range(300)]
    known = RemovalLog()
    for cut in cuts:
        known = known.with_cut(cut)
    assert known.cut_count == 300 and len(known.cuts) == 128
    for seen in range(301):
        right = min(cuts[seen:], default=EVERYTHING)
        assert known.cut_since(seen) == right if seen >= 172 else known.cut_since(seen) <= right
    assert known.cut_since(301) == 0


def test_a_missing_snapshot_leaves_no_error_in_a_finalizer(tmp_path):
    """Outside development mode Python hides what `close` of a file raises in a finalizer."""
    script = (
        "import lastword, sys\n"
        "with lastword.open(sys.argv[1], 'a') as logs:\n"
        "    logs.state('users')\n"
        "    try: logs.state('users', snapshot=sys.argv[1] + '/none.parquet')\n"
        "    except lastword.errors.UsageError: print('refused')\n"
    )
    command = [sys.executable, "-X", "dev", "-c", script, str(tmp_path / "log")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout, "Exception ignored" in result.stderr) == ("refused\n", False)


def test_the_last_line_may_be_long(tmp_path: Path) -> None:
    """It names every partition: 40,000 of them take more than a MiB."""
    every = range(40_000)
    reach = snapshot_file.Reach("users", None, dict.fromkeys(every, 123_456_789), -1, dict.fromkeys(every, 0))
    path = tmp_path / "users.jsonl"
    path.write_text('{"type":"record"}\n' + reach.to_json() + "\n")
    assert path.stat().st_size > 1 << 20
    assert snapshot_file.read_reach(DEFAULT, str(path)) == reach
