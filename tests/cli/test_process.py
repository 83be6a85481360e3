"""Check the command as a process: closed pipes, interruptions, bugs, the clock of the machine."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
from lastword.api.open_dirs import OpenDirs
from lastword.cli import command, main, output
from lastword.errors import DiskFullError
from lastword.values import Progress
from tests.support.exhaustive import stride

COMMAND = [sys.executable, "-m", "lastword"]


@pytest.fixture
def data(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        topic = logs.create_topic(
            "users", key_serializer="str", value_serializer="str", cleanup_policy="compact"
        )
        topic.extend((f"key {n % 100}", f"value {n}") for n in range(5000))
    return tmp_path / "data"


def test_a_closed_pipe_ends_with_0(data):
    process = subprocess.Popen(
        [*COMMAND, "read", str(data), "users"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("0:0")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 0


def test_ctrl_c_while_cleaning_stops_at_a_safe_point(data, monkeypatch, capsys):
    from lastword.cleaner import drive

    def clean(log, config, request, context, **more):
        os.kill(os.getpid(), signal.SIGINT)
        assert context.stop()

    monkeypatch.setattr(drive, "clean_partition", clean)
    assert main.run(["clean", str(data)]) == 130
    assert capsys.readouterr().err.startswith("interrupted: stopped at a safe point")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_answer_of_no_changes_nothing(data, monkeypatch, capsys):
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(command.typer, "confirm", lambda *asked, **more: False)
    assert main.run(["drop", str(data), "users"]) == 2
    assert "not confirmed: nothing was changed" in capsys.readouterr().err
    with lastword.open(data) as logs:
        assert logs.topic("users").bounds() == {0: (0, 5000)}


def test_ctrl_c_is_an_error_object_with_json(data, monkeypatch, capsys):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(lastword.LogDir, "verify", interrupted)
    assert main.run(["verify", str(data), "--json"]) == 130
    error = json.loads(capsys.readouterr().err)
    assert (error["type"], error["class"], error["code"]) == ("error", "KeyboardInterrupt", 130)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_gets_few_writes(data, unbuffered):
    """stdout is a socket that keeps writes separate: 5,000 records of some 45 bytes need about 4 writes."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen([*COMMAND, "read", str(data), "users"], env=environment, stdout=its)
    its.close()
    writes = []
    while packet := mine.recv(1 << 20):
        writes.append(packet)
    mine.close()
    assert process.wait(30) == 0
    text = b"".join(writes)
    assert text.count(b"\n") == 5000
    assert len(writes) <= 2 + len(text) // (1 << 15), [len(packet) for packet in writes]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"][:: stride(2)])
def test_text_is_utf_8_whatever_the_locale(data, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    subprocess.run(
        [*COMMAND, "append", str(data), "users", "ü日", "č"], env=environment, check=True, capture_output=True
    )
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*COMMAND, "read", str(data), "users", "--key", "ü日", *more],
            env=environment,
            capture_output=True,
        )
        assert done.returncode == 0 and "ü日" in done.stdout.decode() and "č" in done.stdout.decode()
    done = subprocess.run([*COMMAND, "ls", str(data / "ü日")], env=environment, capture_output=True)
    assert done.returncode == 2 and "ü日 does not exist" in done.stderr.decode()


def test_a_full_drive_under_stdout_is_no_bug_of_ours(data):
    with Path("/dev/full").open("w") as full:
        for more in ([], ["--json"]):  # without --json the final flush fails
            command = [*COMMAND, "read", str(data), "users", "-n", "1", *more]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
            assert done.returncode == 5 and "cannot write the output" in done.stderr, done.stderr


@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_a_stderr_that_fails_changes_neither_the_work_nor_the_exit_code(data, stderr):
    """A reader of messages that has ended, or a full drive below them, is no failure of the command."""
    read, write = os.pipe()
    os.close(read)
    target = write if stderr == "closed" else os.open("/dev/full", os.O_WRONLY)
    try:
        for arguments, code in (
            (["read", "nowhere", "users"], 2),
            (["get", data, "users", "key 1", "absent"], 8),
            (["verify", data, "--progress"], 0),
            (["clean", data, "--progress"], 0),
        ):
            command = [*COMMAND, *map(str, arguments)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=target, text=True, timeout=60)
            assert done.returncode == code, arguments
    finally:
        for descriptor in {write, target}:
            os.close(descriptor)
    with lastword.open(data) as logs:
        assert len(list(logs["users"].read())) == 100  # the cleaning ended


def test_our_bugs_show_no_traceback(data, monkeypatch, capsys):
    monkeypatch.setattr(OpenDirs, "select_by_topic", lambda *_: 1 / 0)
    assert main.run(["ls", str(data)]) == 70
    stderr = capsys.readouterr().err
    assert (
        stderr.startswith("error: ZeroDivisionError") and "report it" in stderr and "Traceback" not in stderr
    )


def test_json_errors_are_one_object(data, monkeypatch, capsys):
    def full(*arguments, **more):
        raise DiskFullError("no room", remedy="make some", file="f", position=3)

    monkeypatch.setattr(lastword.Topic, "append", full)
    assert main.run(["append", str(data), "users", "a", "b", "--json"]) == 5
    assert json.loads(capsys.readouterr().err) == {
        "type": "error",
        "class": "DiskFullError",
        "message": "no room",
        "remedy": "make some",
        "file": "f",
        "position": 3,
        "code": 5,
    }


def test_progress_lines(data, capsys):
    assert main.run(["verify", str(data), "--json", "--progress"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (
        reports
        and {report["type"] for report in reports} == {"progress"}
        and reports[-1]["done_bytes"] == reports[-1]["total_bytes"]
    )


def test_the_progress_bar_is_not_red(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(output, "BAR_AFTER_SECONDS", 0.0)
    with output.Output().progress("clean") as update:
        update(Progress.at("clean", 1, 2, 1.0))
        update(Progress.at("clean", 2, 2, 2.0))
    shown = sys.stderr.getvalue()
    assert "\x1b[36m" in shown  # cyan
    assert not re.search(r"\x1b\[(31|91|38;5;(197|1|9)|38;2;249)m", shown)


def test_color_only_when_wanted(data, monkeypatch, capsys):
    assert main.run(["append", str(data), "users", "--delete", "key 1"]) == 0
    for arguments, colored in ((["--color", "always"], True), ([], False), (["--color", "never"], False)):
        capsys.readouterr()
        assert main.run(["read", str(data), "users", "--last", "1", *arguments]) == 0
        assert ("\x1b[" in capsys.readouterr().out) == colored


@pytest.mark.slow
def test_follow_shows_what_comes_until_ctrl_c(data):
    """Beside a process that appends; at the end the command prints the position to continue from."""
    command = [*COMMAND, "read", str(data), "users", "--last", "1", "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["offset"] == 4999
    with lastword.open(data, "a") as logs:
        for number in range(3):
            logs.topic("users").append("later", f"value {number}")
            line = json.loads(process.stdout.readline())
            assert (line["offset"], line["value"]) == (5000 + number, f"value {number}")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    summary = {"type": "summary", "ok": True, "topic": "users", "records": 4, "position": {"0": 5003}}
    assert json.loads(rest) == summary
    assert process.returncode == 130


CLOSED = {"2>&-": 0, ">&-": 6, "<&- >&-": 6, "<&- >&- 2>&-": 6, ">&- 2>&-": 6}


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_standard_files_are_no_bug_of_ours(data, closed):
    """The test command takes text and JSON in turn, and a missing directory for the first."""
    line, code, at = f'exec "$@" {closed}', CLOSED[closed], list(CLOSED).index(closed)
    for more in ([], ["--json"])[at % 2 :: stride(2)]:
        call = ["sh", "-c", line, "sh", *COMMAND, "read", str(data), "users", "-n", "1", *more]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == code, done
        assert ("cannot write the output" in done.stderr) == (code == 6 and "2>&-" not in closed), done
    if at % stride(5) == 0:
        missing = [*COMMAND, "ls", str(data / "missing")]
        assert subprocess.run(["sh", "-c", line, "sh", *missing], capture_output=True).returncode == 2


def test_a_closed_stdin_is_empty_and_no_terminal(data):
    for arguments, code in (
        (["append", str(data), "users"], 0),
        (["drop", str(data), "users"], 2),
        (["users", str(data / "users.toml"), "--add", "ada"], 2),
    ):
        call = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, *arguments]
        done = subprocess.run(call, capture_output=True, text=True)
        assert done.returncode == code, done


def test_ctrl_c_while_it_starts_shows_no_traceback():
    pressed = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'lastword.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from lastword.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", pressed], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_errors_are_coloured_as_stderr_and_color_say(data, monkeypatch, capsys):
    """stdout may be a terminal while stderr is a file, and vice versa."""
    for arguments, colored in ((["--color", "always"], True), ([], False), (["--color=never"], False)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main.run(["ls", str(data / "no"), *arguments]) == 2
        assert ("\x1b[31merror" in capsys.readouterr().err) == colored
