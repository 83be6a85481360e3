"""One odd partition is reported and hides no other: verbs x kinds of oddness, in Python and as commands.

A partition is odd if its name is valid but it is no readable directory, or its log no readable regular file.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import lastword
from lastword.cli.main import run
from lastword.errors import (
    InconsistentTopicIdError,
    LastwordError,
    NotAPartitionError,
    PartialFailure,
    StorageError,
)
from lastword.files import OsFiles
from lastword.files.failures import translate
from tests.api.conftest import tree_digest
from tests.fakes.recording import RecordingFiles

ODD = ("t", 1)
OTHERS = [("other", 0), ("t", 0), ("t", 2)]
LOG = f"{0:020d}.log"


def forbidding(forbidden: Path) -> RecordingFiles:
    """Return files that refuse what the system refuses a user without permission: root could read it."""

    def fail(call):
        is_opened = call.name in ("open_read", "open_append", "create", "listdir")
        is_inside = call.path.startswith(f"{forbidden}/") and (is_opened or call.name == "stat")
        if is_inside or (is_opened and call.path == str(forbidden)):
            return translate(PermissionError(errno.EACCES, "Permission denied"), call.path, "open")
        return None

    return RecordingFiles(OsFiles(), fail=fail)


def link(root):
    (root / "t-1").rename(root.parent / "elsewhere")
    (root / "t-1").symlink_to(root.parent / "elsewhere")


def dangling(root):
    shutil.rmtree(root / "t-1")
    (root / "t-1").symlink_to(root.parent / "nowhere")


def plain_file(root):
    shutil.rmtree(root / "t-1")
    (root / "t-1").write_bytes(b"x")


def log_of(make):
    def spoil(root):
        path = root / "t-1" / LOG
        path.rename(root.parent / LOG)
        make(path)

    return spoil


KINDS = {
    "link": link,
    "dangling link": dangling,
    "file": plain_file,
    "unreadable": lambda root: forbidding(root / "t-1"),
    "log is a pipe": log_of(os.mkfifo),
    "log is a directory": log_of(Path.mkdir),
    "log is a link": log_of(lambda path: path.symlink_to(path.parent.parent.parent / LOG)),
    "log is a device": log_of(lambda path: os.mknod(path, 0o20644, os.makedev(1, 3))),
    "log is unreadable": lambda root: forbidding(root / "t-1" / LOG),
}
FORBIDDEN = ("unreadable", "log is unreadable")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("built") / "data"
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        for name, partitions in (("t", 3), ("other", 1)):
            settings = {"cleanup_policy": "compact,delete", "retention_ms": "100000d"}
            topic = logs.create_topic(name, partitions=partitions, **settings)
            for number in range(partitions):
                for value in (b"1", b"2"):
                    topic.append(b"key", value, partition=number)
    return root


@pytest.fixture
def root(built, tmp_path):
    shutil.copytree(built, tmp_path / "data")
    return tmp_path / "data"


def spoil(root, kind):
    try:
        return KINDS[kind](root) or OsFiles()
    except PermissionError:
        pytest.skip("only root makes devices")


def collect(call):
    """Return the results and the error of a verb."""
    try:
        return call(), None
    except PartialFailure as error:
        assert error.errors[0].message in error.message
        return error.results, error
    except LastwordError as error:
        return [], error


def partitions_of(results):
    return sorted({(result.topic, result.partition) for result in results if getattr(result, "topic", "")})


def every(call):
    """Return a check of a verb over all partitions: the others have results, the odd one an error."""

    def check(logs):
        results, error = collect(lambda: call(logs, None, None))
        assert partitions_of(results) == OTHERS
        return error

    return check


def audit(logs):
    _, error = collect(lambda: logs.audit("t", delivered={}))
    report = logs.audit("other", delivered={})
    assert report.counts["missing"] == 1
    return error


def restore(logs):
    to = Path(logs.paths[0]).parent / "out.jsonl"
    _, error = collect(lambda: logs.restore("t", to=to))
    assert not to.exists()  # a file without the odd partition's keys would look complete
    assert [restored.keys for restored in logs.restore("t", 0, to=to)] == [1]
    assert [restored.keys for restored in logs.restore("other", to=to)] == [1]
    return error


def explain(logs):
    for topic, partition in OTHERS:
        assert logs.explain(topic, partition).plan.partition == partition
    return collect(lambda: logs.explain(*ODD))[1]


def verify(logs):
    report = logs.verify()
    assert not report.ok and report.records == 6
    assert {problem.code for problem in report.problems} <= {"not-a-partition", "unreadable"}
    assert all("t-1" in problem.file for problem in report.problems)
    assert logs.verify("other").ok and logs.verify("t", 0).ok
    return "reported" if report.problems else None


def read(logs):
    assert [record.value for record in logs.topic("other").read()] == [b"1", b"2"]
    assert [record.value for record in logs.topic("t").read(partition=2)] == [b"1", b"2"]
    return collect(lambda: list(logs.topic("t").read()))[1]


def describe(logs):
    assert logs.topic("other").describe()[0].records == 2
    return collect(lambda: logs.topic("t").describe())[1]


READING = {
    "topics": lambda logs: "listed" if [t.name for t in logs.topics()] == ["other", "t"] else None,
    "plan": every(lambda logs, topic, partition: logs.plan(topic, partition)),
    "plan due": every(lambda logs, topic, partition: logs.plan(topic, partition, due=True)),
    "simulate": every(lambda logs, topic, partition: logs.simulate(topic, partition)),
    "duplication": every(lambda logs, topic, partition: logs.duplication(topic, partition)),
    "explain": explain,
    "audit": audit,
    "restore": restore,
    "verify": verify,
    "read": read,
    "describe": describe,
}
WRITING = {
    "clean": every(lambda logs, topic, partition: logs.clean(topic, partition)),
    "clean due": lambda logs: collect(lambda: logs.clean(due=True))[1],
    "expire": lambda logs: collect(logs.expire)[1],
    "append": lambda logs: (
        collect(lambda: [logs.topic(t).append(b"k", b"v", partition=n) for t, n in OTHERS]) and "appended"
    ),
}
"""Each returns the report of the odd partition: an error, or a string."""


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("kind", KINDS)
def test_verbs_in_python(root, kind, mode):
    files = spoil(root, kind)
    for name, verb in (READING | (WRITING if mode == "a" else {})).items():
        with lastword.open(root, mode, files=files, log_cleaner_enable=False) as logs:
            outcome = verb(logs)
            assert outcome is not None, name
            if isinstance(outcome, LastwordError):
                expected = StorageError if kind in FORBIDDEN else NotAPartitionError
                assert isinstance(outcome, expected), (name, outcome)
                assert "t-1" in outcome.message and outcome.remedy, (name, outcome)


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_on_the_odd_partition_raise_its_error(root, kind):
    files = spoil(root, kind)
    expected = StorageError if kind in FORBIDDEN else NotAPartitionError
    out = root.parent / "out.jsonl"
    with lastword.open(root, "a", files=files, log_cleaner_enable=False) as logs:
        for call in (
            lambda: logs.plan(*ODD),
            lambda: logs.clean(*ODD),
            lambda: logs.expire(*ODD),
            lambda: logs.explain(*ODD),
            lambda: logs.simulate(*ODD),
            lambda: logs.duplication(*ODD),
            lambda: logs.audit(*ODD, delivered={}),
            lambda: logs.restore(*ODD, to=out),
            lambda: logs.topic("t").append(b"k", b"v", partition=1),
            lambda: list(logs.topic("t").read(partition=1)),
        ):
            with pytest.raises(expected):
                call()
        report = logs.verify(*ODD)
        assert [problem.code for problem in report.problems] == [
            "unreadable" if kind in FORBIDDEN else "not-a-partition"
        ]
    assert not out.exists()


def lastword_command(*words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


COMMANDS = {
    "ls --by partition": OTHERS,
    "ls --json": OTHERS,
    "ls --by topic": [],
    "ls --segments": OTHERS,
    "ls --quick": [],
    "duplication": OTHERS,
    "simulate": OTHERS,
    "verify": [],
    "verify --quick": [],
    "clean --dry-run": OTHERS,
    "clean --due --dry-run": OTHERS,
    "expire --dry-run": OTHERS,
    "explain": OTHERS,
    "clean": [],
    "clean --due": [],
    "expire": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_commands(root, kind, monkeypatch):
    files = spoil(root, kind)
    monkeypatch.setattr("lastword.files.DEFAULT", files)
    for line, shown in COMMANDS.items():
        command, *options = line.split()
        code, out, err = lastword_command(command, root, *options)
        assert code == (1 if command == "verify" else 6 if kind in FORBIDDEN else 3), (line, code, out, err)
        assert "Traceback" not in err and "t-1" in (out if command == "verify" else err), (line, out, err)
        for topic, number in shown:
            both = (f"{topic}-{number}", f'"topic":"{topic}","partition":{number}')
            assert any(text in out for text in both), (line, out)
        code, *_ = lastword_command(command, root, "other", *options)
        assert code == 0, line
    rows = [json.loads(line) for line in lastword_command("ls", root, "--json")[1].splitlines()]
    odd = next(row for row in rows if (row.get("topic"), row.get("partition")) == ODD)
    assert odd["records"] is None and odd["policy"] == "compact,delete"
    to = root.parent / "out.jsonl"
    assert lastword_command("restore", root, "other", to)[0] == 0
    assert lastword_command("restore", root, "t", to, "-p", "0")[0] == 0
    assert lastword_command("restore", root, "t", root.parent / "t.jsonl")[0] in (3, 6)
    assert not (root.parent / "t.jsonl").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_odd_partition_is_as_it_was(root, kind):
    files = spoil(root, kind)
    before = sorted((path.name, path.lstat().st_mode) for path in root.glob("t-1"))
    with lastword.open(root, "a", files=files, log_cleaner_enable=False) as logs:
        collect(logs.clean)
        collect(logs.expire)
    assert sorted((path.name, path.lstat().st_mode) for path in root.glob("t-1")) == before
    assert lastword.open(root, files=files).verify("t", 2).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_is_deleted_if_nothing_else_goes_with_it(root, kind, monkeypatch):
    """A deletion followed the link, and removed what is in its target."""
    elsewhere = root.parent / "elsewhere"
    files = spoil(root, kind)
    outside, inside = tree_digest(elsewhere), tree_digest(root)
    monkeypatch.setattr("lastword.files.DEFAULT", files)
    code, out, err = lastword_command("drop", root, "t", "--dry-run")
    if kind in ("link", "dangling link", "file", "unreadable"):
        assert code == (6 if kind in FORBIDDEN else 3) and "t-1" in err, (code, out, err)
        with lastword.open(root, "a", files=files, log_cleaner_enable=False) as logs:
            with pytest.raises(StorageError if kind in FORBIDDEN else NotAPartitionError):
                logs.delete_topic("t")
            assert list(logs) == ["other", "t"]
    else:
        assert code == 0 and "3 partitions (1 damaged, not counted in the size)" in out, (code, out, err)
        assert tree_digest(root) == inside
        assert lastword_command("drop", root, "t", "--yes", "--json")[0] == 0
        assert not list(root.glob("t-*"))
        assert list(lastword.open(root)) == ["other"]
    assert tree_digest(elsewhere) == outside


@pytest.mark.parametrize("text", ["garbage", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"])
def test_a_partition_of_another_topic_is_not_deleted_and_one_without_an_id_is(root, text):
    (root / "t-1" / "partition.metadata").write_text(text)
    code, _, err = lastword_command("drop", root, "t", "--yes")
    if text == "garbage":
        assert (code, err) == (0, "") and not list(root.glob("t-*"))
        return
    assert code == 3 and "belongs to another topic" in err
    with lastword.open(root, "a") as logs, pytest.raises(InconsistentTopicIdError):
        logs.delete_topic("t")
    assert len(list(root.glob("t-*"))) == 3


def test_a_plain_file_that_no_checkpoint_names_is_no_partition(root):
    (root / "notes-2024").write_text("mine")
    with lastword.open(root) as logs:
        assert [topic.name for topic in logs.topics()] == ["other", "t"] and logs.verify().ok


def test_a_partition_that_cannot_be_removed_stops_no_other_work(root):
    waits = root / f"gone-0.{'0' * 32}-delete"
    waits.mkdir()
    with lastword.open(root, "a", files=forbidding(waits), log_cleaner_enable=False) as logs:
        assert logs.topic("other").append(b"k", b"v").offset == 2
    assert waits.exists()
