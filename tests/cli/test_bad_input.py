"""Check refusals that no golden script has: class, exit code, and that the directory is unchanged."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
from lastword.cli import main
from lastword.errors import NotALogDirError
from tests.api.conftest import tree_digest


@pytest.fixture
def data(tmp_path):
    """Make a directory with a compacted topic, a topic without a policy, and a text file beside it."""
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.create_topic("users", cleanup_policy="compact", max_message_bytes=1000).append(b"a", b"1")
        logs.create_topic("plain").append(b"a", b"1")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("x")
    return tmp_path


def refused(capsys, arguments):
    """Return (class, exit code, message and remedy) of a refused command line."""
    code = main.run([*arguments, "--json"])
    captured = capsys.readouterr()
    error = json.loads(captured.err.splitlines()[-1])
    assert error["type"] == "error" and error["code"] == code and error["remedy"]
    return error["class"], code, f"{error['message']} {error['remedy']}"


USERS = ["data", "users"]
CHANGES = (
    ["append", "users", "a", "1"],
    ["create", "new"],
    ["clean"],
    ["config", "--set", "segment.ms=1d"],
)
CASES = [
    ("not a log directory", ["append", "text", "users", "a", "1"], "NotALogDirError", 2, "text"),
    ("not a log directory, create", ["create", "text", "users"], "NotALogDirError", 2, "text"),
    ("a file", ["read", "text/notes.txt", "users"], "NotALogDirError", 2, "notes.txt"),
    ("absent", ["append", "absent", "users", "a", "1"], "NotALogDirError", 2, "absent"),
    ("absent, clean", ["clean", "absent"], "NotALogDirError", 2, "absent"),
    ("slash, append", ["append", "data", "../users", "a", "1"], "InvalidTopicError", 2, "../users"),
    ("dots, read", ["read", "data", ".."], "InvalidTopicError", 2, "'..'"),
    ("an argument", ["create", "data", "x", "--set", "partitions=3"], "UnknownSettingError", 2, "partitions"),
    ("exist_ok", ["create", *USERS, "--set", "exist_ok=yes"], "UnknownSettingError", 2, "exist_ok"),
    ("topic", ["config", "data", "--set", "topic=users"], "UnknownSettingError", 2, "'topic'"),
    ("strategy", ["simulate", "data", "--set", "strategy=kafka"], "UnknownSettingError", 2, "nearest"),
    (
        "set and unset",
        ["config", *USERS, "--set", "segment.ms=1d", "--unset", "segment.ms"],
        "UsageError",
        2,
        "--unset of segment.ms",
    ),
    ("large key", ["append", *USERS, "k" * 1000, "1"], "RecordTooLargeError", 2, "max.message.bytes"),
    ("no such partition", ["clean", "data", "users", "-p", "4"], "UsageError", 2, "partition 4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind", "code", "says"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_refused(data, capsys, monkeypatch, arguments, kind, code, says):
    monkeypatch.chdir(data)
    before = tree_digest(data)
    error = refused(capsys, arguments)
    assert error[:2] == (kind, code) and says in error[2]
    assert tree_digest(data) == before


DEEP = "[" * 100_000 + "]" * 100_000
LINES = [
    ("surrogate", r'{"key": "a", "value": "1", "headers": [["\ud800", "x"]]}', "SerializerError"),
    ("header", '{"key": "a", "value": "1", "headers": [["x", 5]]}', "UsageError"),
    ("infinite", '{"key": "a", "value": "1", "timestamp": 1e400}', "UsageError"),
    ("deep", f'{{"key": "a", "value": {DEEP}}}', "UsageError"),
    ("headers as an object", '{"key": "a", "value": "1", "headers": {"ab": "x"}}', "UsageError"),
    ("a header as text", '{"key": "a", "value": "1", "headers": ["ab"]}', "UsageError"),
    ("no header", '{"key": "a", "value": "1", "headers": null}', "UsageError"),
    ("a time as a flag", '{"key": "a", "value": "1", "timestamp": true}', "UsageError"),
    ("a part of a millisecond", '{"key": "a", "value": "1", "timestamp": 1.9}', "UsageError"),
    ("a time as text", '{"key": "a", "value": "1", "timestamp": "1"}', "UsageError"),
]


@pytest.mark.parametrize(("line", "kind"), [c[1:] for c in LINES], ids=[c[0] for c in LINES])
def test_lines_of_stdin_that_are_refused(data, capsys, monkeypatch, line, kind):
    monkeypatch.chdir(data)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
    assert refused(capsys, ["append", *USERS])[:2] == (kind, 2)
    with lastword.open("data") as logs:
        assert logs["users"].bounds() == {0: (0, 1)}


MAKING = [
    (["create", "new", "a topic"], "InvalidTopicError"),
    (["create", "new", "t", "--set", "cleanup.policy=x"], "InvalidSettingError"),
    (["create", "new", "t", "--key-serializer", "int128"], "UsageError"),
    (["create", "new", "t", "--partitioner", "random"], "UsageError"),
    (["create", "new", "t", "--config", "other.toml", "--set", "segment.bytes=64MiB"], "UsageError"),
    (["create", "new", "t", "--config", "other.toml", "--key-serializer", "str"], "UsageError"),
    (["create", "empty", "t", "--config", "other.toml", "--set", "segment.bytes=64MiB"], "UsageError"),
    (["create", "new", "t", "--dir", "data", "--config", "other.toml", "--set", "flush.ms=1"], "UsageError"),
    (["create", "data", "t", "--dir", "new", "--config", "other.toml", "--set", "flush.ms=1"], "UsageError"),
    (["create", "new", "t", "--config", "wrong.toml"], "InvalidSettingError"),
    (["create", "new", "t", "--config", "absent.toml"], "UsageError"),
    (["create", "new", "t", "--dir", "text"], "NotALogDirError"),
    (["create", "new", "t", "--dir", "text/notes.txt"], "NotALogDirError"),
    (["create", "new", "t", "--dir", "new2", "--dir", "data/users-0"], "NotALogDirError"),
    (["create", "new", "t", "--metadata", "absent"], "UsageError"),
    (["create", "data/new", "t"], "NotALogDirError"),
    (["create", "data/users", "t"], "NotALogDirError"),
    (["create", "data/new/below", "t"], "NotALogDirError"),
    (["create", "data/users-0/new", "t"], "NotALogDirError"),
    (["create", "new", "t", "--dir", "data/new"], "NotALogDirError"),
    (["serve", "data/new", "--listen", "127.0.0.1:0"], "NotALogDirError"),
    (["copy", "data", "data/new"], "NotALogDirError"),
    (["serve", "new", "--config", "wrong.toml"], "InvalidSettingError"),
    (["serve", "new", "--dir", "text"], "NotALogDirError"),
    (["serve", "new", "--listen", "127.0.0.1"], "UsageError"),
    (["serve", "new", "--listen", "127.0.0.1:0", "--metrics", "TAKEN"], "UsageError"),
    (["serve", "new", "--listen", "127.0.0.1:0", "--console", "--console-listen", "TAKEN"], "UsageError"),
    (["serve", "new", "--listen", "FREE", "--metrics", "FREE"], "UsageError"),
    (["serve", "new", "--listen", "FREE", "--console", "--console-listen", "FREE"], "UsageError"),
    (["serve", "new", "--listen", "127.0.0.1:0", "--users", "absent.toml"], "UsageError"),
    (["copy", "text", "new"], "NotALogDirError"),
    (["copy", "data", "new", "absent"], "UnknownTopicError"),
    (["copy", "data", "new", "--config", "wrong.toml"], "InvalidSettingError"),
    (["copy", "data", "new", "--storage", "a=b"], "UsageError"),
    (["pull", "127.0.0.1", "--to", "new"], "UsageError"),
    (["pull", "127.0.0.1:1", "--to", "new"], "BrokerUnreachableError"),
    (["pull", "127.0.0.1:1", "--to", "new", "--client-config", "absent"], "UsageError"),
    (["restore", "data", "absent", "new.jsonl"], "UnknownTopicError"),
    (["restore", "data", "users", "new.csv"], "UsageError"),
    (["restore", "data", "users", "new/users.jsonl"], "UsageError"),
    (["restore", "data", "new.jsonl"], "UsageError"),
    (["restore", "data", "new.csv"], "UsageError"),
    (["erase", "data", "users", "a", "--yes", "--certificate", "new/a.json"], "UsageError"),
    (["erase", "data", "users", "a", "--yes", "--certificate", "empty"], "UsageError"),
    (["export", "data", "users", "--to", "delta:."], "UsageError"),
    (["export", "data", "users", "--to", "delta:other/new"], "NotALogDirError"),
    (["export", "data/users-0", "--to", "delta:new"], "UsageError"),
    (["export", "data/users-0"], "UsageError"),
    (["export", "data", "users", "--to", "delta:new", "--value-format", "avro"], "UsageError"),
    (["export", "data", "absent", "--to", "delta:new"], "UnknownTopicError"),
    (["users", "new", "--remove", "ada"], "UsageError"),
]
"""Commands that make `new` or use `empty`, each with one mistake. TAKEN: an address in use; FREE: another."""


@pytest.mark.parametrize(("arguments", "kind"), MAKING, ids=[" ".join(case[0]) for case in MAKING])
def test_what_is_refused_makes_nothing_new(data, capsys, monkeypatch, arguments, kind):
    monkeypatch.chdir(data)
    (data / "other.toml").write_text('[topics.t]\n"segment.bytes" = "1MiB"\n')
    (data / "wrong.toml").write_text('[topics.t]\n"segment.bytes" = "large"\n')
    (data / "empty").mkdir()
    (data / "other").mkdir()
    (data / "other" / "meta.properties").write_text("version=1\n")
    before = tree_digest(data)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with socket.create_server(("127.0.0.1", 0)) as other:
            addresses = {
                word: f"127.0.0.1:{listener.getsockname()[1]}"
                for word, listener in (("TAKEN", taken), ("FREE", other))
            }
        assert refused(capsys, [addresses.get(word, word) for word in arguments])[0] == kind
    assert tree_digest(data) == before


@pytest.mark.parametrize("marker", ["delete", "future", "stray"])
def test_no_command_takes_a_directory_that_is_not_served_for_its_partition(data, capsys, monkeypatch, marker):
    """Every command that takes DIR refuses a marked directory, beside the partition of that name."""
    monkeypatch.chdir(data)
    marked = f"data/users-0.{'0123456789abcdef' * 2}-{marker}"
    shutil.copytree("data/users-0", marked)
    more = {
        "append": ["k", "v"],
        "audit": ["data"],
        "config": ["--set", "segment.ms=1d"],
        "copy": ["copied"],
        "create": ["t"],
        "drop": ["--yes"],
        "erase": ["a", "--yes"],
        "export": ["--to", "delta:table"],
        "get": ["a"],
        "lease": ["name", "--advance", "0"],
        "restore": ["users.jsonl"],
        "serve": ["--listen", "127.0.0.1:0"],
        "trim": ["--before", "1", "--yes"],
    }
    before = tree_digest(data)
    for name in sorted({*main.INSPECT, *main.CHANGE} - {"dump", "pull"}):
        kind, code, says = refused(capsys, [name, marked, *more.get(name, [])])
        assert (kind, code) in (("UsageError", 2), ("NotALogDirError", 2)), name
        assert tree_digest(data) == before, name
    assert f"ends with -{marker}" in refused(capsys, ["read", marked])[2]
    assert f"`lastword dump {marked}`" in says or kind == "NotALogDirError"
    assert main.run(["dump", marked]) == 0


def test_restore_names_the_formats_for_a_file_of_another_one(data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    with lastword.open("data", "a") as logs:
        logs.delete_topic("plain")
    assert "new.csv ends with .csv one of .parquet" in refused(capsys, ["restore", "data", "new.csv"])[2]
    with lastword.open("data", "a") as logs:
        logs.create_topic("com.acme.csv")
    assert "restore needs OUT" in refused(capsys, ["restore", "data", "com.acme.csv"])[2]


def test_a_working_directory_that_is_gone(data, capsys, monkeypatch):
    (data / "gone").mkdir()
    monkeypatch.chdir(data / "gone")
    (data / "gone").rmdir()
    try:
        kind, code, says = refused(capsys, ["ls", "."])
    finally:
        os.chdir(data)
    assert (kind, code) == ("UsageError", 2) and "working directory" in says


def test_a_file_beside_another_directory_has_the_settings_of_a_new_topic(data, monkeypatch):
    """The new directory uses the settings of the one that is there, so those of `--set` apply."""
    monkeypatch.chdir(data)
    arguments = ["create", "new", "t", "--dir", "data", "--config", "data/lastword.toml"]
    (data / "data" / "lastword.toml").write_text('[defaults]\n"segment.bytes" = "1MiB"\n')
    assert main.run([*arguments, "--set", "segment.bytes=2MiB"]) == 0
    with lastword.open(["new", "data"]) as logs:
        assert logs["t"].config.segment_bytes == 2 << 20


def test_a_topic_that_is_refused_makes_no_log_in_a_bucket(tmp_path, capsys):
    file, url = tmp_path / "other.toml", "memory://refused/log"
    file.write_text('[topics.t]\n"segment.bytes" = "1MiB"\n')
    arguments = ["create", url, "t", "--config", str(file), "--set", "segment.bytes=64MiB"]
    assert refused(capsys, arguments)[0] == "UsageError"
    with pytest.raises(NotALogDirError):
        lastword.open(url)


@pytest.mark.parametrize("option", [[], ["--delete"]])
def test_json_that_is_nested_too_deep_is_refused(data, capsys, monkeypatch, option):
    monkeypatch.chdir(data)
    with lastword.open("data", "a") as logs:
        logs.create_topic("trees", key_serializer="json", value_serializer="json")
    key = [DEEP] if option else [DEEP, "1"]
    assert refused(capsys, ["append", "data", "trees", *option, *key])[:2] == ("UsageError", 2)


def test_a_line_of_a_file_of_keys_ends_with_a_line_feed_alone(data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    keys = ["a\x1eb", "a\u2028b", "a\x85b", "a\rb", "a", "b", "c"]
    with lastword.open("data", "a") as logs:
        logs["users"].extend([(key.encode(), b"1") for key in keys])
    Path("keys.txt").write_bytes("\n".join(keys[:4]).encode() + b"\r\n\nc")
    assert main.run(["erase", "data", "users", "--keys-file", "keys.txt", "--now", "--yes"]) == 0
    with lastword.open("data") as logs:
        assert {record.key for record in logs["users"].read()} == {b"a", b"b"}


def test_the_last_records_are_read_whatever_their_number(data, capsys):
    for number in ("0", "1", "2", str(10**30)):
        assert main.run(["read", str(data / "data"), "users", "--last", number, "--json"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == (1 if number == "0" else 2)


def test_a_partition_beside_one_that_cannot_be_read(data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    with lastword.open("data", "a") as logs:
        logs.create_topic("pairs", 2).extend([(b"a", b"1"), (b"a", b"2")], partition=0)
    Path("data/pairs-1").rename("elsewhere")
    Path("data/pairs-1").symlink_to("../elsewhere")
    beside = ["data", "pairs", "-p", "0"]
    assert main.run(["read", *beside, "--last", "1"]) == 0
    assert main.run(["trim", *beside, "--before", "1", "--dry-run"]) == 0
    assert main.run(["trim", *beside, "--before", "1", "--yes"]) == 0
    assert main.run(["read", *beside]) == 0
    assert "  a  2\n" in capsys.readouterr().out
    assert refused(capsys, ["read", "data", "pairs", "--last", "1"])[:2] == ("NotAPartitionError", 3)


def test_a_bad_settings_file_is_refused_before_anything_is_opened(data, capsys):
    (data / "data" / "lastword.toml").write_text(
        '[topics.users]\ncleanup.polcy = "compact"\nsegment.bytes = "x"\n'
    )
    before = tree_digest(data)
    for arguments in (["read", "users"], ["append", "users", "a", "1"], ["clean"], ["create", "new"]):
        kind, code, says = refused(capsys, [arguments[0], str(data / "data"), *arguments[1:]])
        assert (kind, code) == ("UnknownSettingError", 2)
        assert "lastword.toml:2" in says and "lastword.toml:3" in says and "nearest: cleanup.policy" in says
    assert tree_digest(data) == before


def test_a_locked_directory(data, capsys):
    """Another process has the lock: read-only commands work; changes are refused with its process number."""
    code = (
        "import lastword, sys; logs = lastword.open(sys.argv[1], 'a'); print('locked', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(data / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        before = tree_digest(data)
        for arguments in CHANGES:
            kind, code, says = refused(capsys, [arguments[0], str(data / "data"), *arguments[1:]])
            assert (kind, code) == ("LogDirLockedError", 4) and str(holder.pid) in says
        assert main.run(["read", str(data / "data"), "users", "-q"]) == 0
        assert tree_digest(data) == before
    finally:
        holder.communicate("\n", timeout=30)


def test_an_offset_below_the_log_start(data, capsys):
    with lastword.open(data / "data", "a") as logs:
        for number in range(5):
            logs.topic("users").append(b"%d" % number, b"1")
    (data / "data" / "log-start-offset-checkpoint").write_text("0\n1\nusers 0 3\n")
    before = tree_digest(data)
    kind, code, says = refused(capsys, ["read", str(data / "data"), "users", "--start", "1"])
    assert (
        (kind, code) == ("OffsetOutOfRangeError", 2)
        and "below log start 3" in says
        and "1-2 are gone" in says
    )
    with lastword.open(data / "data") as logs:
        assert [r.offset for r in logs.topic("users").read()] == [3, 4, 5]
    assert tree_digest(data) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(data, capsys):
    for path in [data / "data", *(data / "data").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = tree_digest(data)
        kind, code, _ = refused(capsys, ["append", str(data / "data"), "users", "a", "1"])
        assert (kind, code) == ("NotPermittedError", 6)
        assert main.run(["read", str(data / "data"), "users"]) == 0
        assert tree_digest(data) == before
    finally:
        for path in [data / "data", *(data / "data").rglob("*")]:
            path.chmod(0o755)


def test_a_read_only_drive(data, capsys, monkeypatch):
    """As above on a drive mounted read-only, simulated by files that refuse writes."""
    from lastword import files
    from lastword.errors import NotPermittedError
    from tests.fakes.recording import RecordingFiles

    refusing = RecordingFiles(
        files.OsFiles(),
        fail=lambda call: (
            NotPermittedError(f"{call.path} is read-only", remedy="mount it to write", file=call.path)
            if call.changes
            else None
        ),
    )
    monkeypatch.setattr(files, "DEFAULT", refusing)
    before = tree_digest(data)
    for arguments in CHANGES:
        kind, code, _ = refused(capsys, [arguments[0], str(data / "data"), *arguments[1:]])
        assert (kind, code) == ("NotPermittedError", 6)
    assert main.run(["read", str(data / "data"), "users"]) == 0
    assert tree_digest(data) == before


def test_a_full_drive(data, capsys, monkeypatch):
    from lastword import files
    from lastword.errors import DiskFullError
    from tests.fakes.recording import RecordingFiles

    def fail(call):
        if call.name == "append" and call.path.endswith(".log"):
            return DiskFullError(f"{call.path}: no room", remedy="free space", file=call.path)
        return None

    monkeypatch.setattr(files, "DEFAULT", RecordingFiles(files.OsFiles(), fail=fail))
    logs = list((data / "data").rglob("*.log"))
    before = {path: path.read_bytes() for path in logs}
    for arguments in (["append", "users", "a", "2"], ["append", "users", "--delete", "a"]):
        kind, code, _ = refused(capsys, [arguments[0], str(data / "data"), *arguments[1:]])
        assert (kind, code) == ("DiskFullError", 5)
    assert {path: path.read_bytes() for path in logs} == before
    monkeypatch.undo()
    assert main.run(["verify", str(data / "data"), "-q"]) == 0


def test_duplication_tells_what_it_counted_before_what_is_damaged(tmp_path, capsys):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        for name in ("hurt", "sound"):
            logs.create_topic(name, cleanup_policy="compact").extend([(b"k", b"1"), (b"k", b"2")])
            logs.dirs.log(name, 0).roll()
    log = tmp_path / "data" / "hurt-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    assert main.run(["duplication", str(tmp_path / "data"), "--json"]) == 3
    said = capsys.readouterr()
    row, summary = (json.loads(line) for line in said.out.splitlines())
    assert (row["topic"], row["superseded_records"]) == ("sound", 1)
    assert summary["ok"] is False and "hurt-0" in said.err


def test_ls_names_what_is_wrong_with_a_partition(data, capsys, monkeypatch):
    """A link is not followed, and a damaged log is damaged: the two need different remedies."""
    monkeypatch.chdir(data)
    Path("data/plain-0").rename("elsewhere")
    Path("data/plain-0").symlink_to("../elsewhere")
    log = Path(f"data/users-0/{0:020d}.log")
    log.write_bytes(log.read_bytes()[:-1])
    assert main.run(["ls", "data"]) == 3
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["plain"].endswith("not set (1 unreadable)")
    assert lines["users"].endswith("compact (1 damaged)")
    assert main.run(["ls", "data", "--json"]) == 3
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    problems = {row["topic"]: row["problem"] for row in rows if row["type"] == "partition"}
    assert problems == {"plain": "unreadable", "users": "damaged"}
