"""Check that SIGINT, SIGTERM and SIGHUP end every changing command at a safe point, with real processes."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import lastword
from lastword.cli import main, signals
from tests.support.exhaustive import stride

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
MARKER = ".kafka_cleanshutdown"
each_signal = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)

SLOW = """
import os, sys, time
from lastword.files import OsFiles
from lastword.__main__ import main

call, part, told = sys.argv[1:4]
real = getattr(OsFiles, call)

def slow(self, path, *more, **options):
    # The system is slow where the test says, so that the signal comes there.
    if part in os.fspath(path) and os.path.exists(told) is False:
        open(told, "w").close()
        time.sleep(1.5)
    return real(self, path, *more, **options)

setattr(OsFiles, call, slow)
sys.argv = ["lastword", *sys.argv[4:]]
main()
"""


@pytest.fixture
def data(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", cleanup_policy="compact", segment_bytes=2000)
        old = logs.create_topic("old", cleanup_policy="delete", retention_ms="1h", segment_bytes=2000)
        for number in range(60):
            users.append(b"k%d" % (number % 4), b"." * 100)
            old.append(b"k", b"." * 100, timestamp=1_000_000_000_000)
    assert (tmp_path / "data" / MARKER).exists()
    return tmp_path / "data"


@contextmanager
def process(*command, **options):
    running = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def wait_for(condition, running):
    deadline = time.monotonic() + 60
    while not condition():
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended_well(running, number, root):
    """Check the exit code, one sentence and no traceback; the marker exists and no temporary file is left."""
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 128 + number, stderr
    assert "stopped at a safe point; finished work stays" in stderr
    assert ("interrupted" in stderr) == (number == signal.SIGINT) and number.name in stderr + "SIGINT"
    assert "Traceback" not in stderr
    assert (root / MARKER).exists()
    assert not [path for path in root.rglob("*") if "rewrite-" in path.name or "delete" in path.name]
    with lastword.open(root) as logs:
        assert logs.verify().ok
    return stderr


PLACES = [
    ("unlink", MARKER, ("clean", "DIR", "users")),  # while the process opens the directory
    ("rename", "rewrite-", ("clean", "DIR", "users")),  # in the middle of a swap
    ("fsync_dir", "users-0", ("clean", "DIR", "users")),
    ("unlink", MARKER, ("expire", "DIR")),
    ("rename", "old-0", ("expire", "DIR")),
    ("mkdir", "new-3", ("create", "DIR", "new", "--partitions", "8", "--set", "segment.bytes=4096")),
    ("unlink", MARKER, ("create", "DIR", "new")),
    ("open_append", "log-start", ("trim", "DIR", "users", "--before", "30", "--yes")),
    ("rename", "old-0", ("drop", "DIR", "old", "--yes")),
    ("open_append", "lastword.topic-users", ("config", "DIR", "users", "--set", "segment.bytes=4096")),
    ("unlink", MARKER, ("append", "DIR", "users", "k0", "v")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "call", "part", "command"),
    [(SIGNALS[at % 3], *place) for at, place in enumerate(PLACES)][1 % stride(4) :: stride(4)],
    ids=lambda value: getattr(value, "name", None) or (value if isinstance(value, str) else value[0]),
)
def test_a_changing_command_ends_at_a_safe_point(data, tmp_path, number, call, part, command):
    reached = tmp_path / "reached"
    arguments = [data if word == "DIR" else word for word in command]
    with process("-c", SLOW, call, part, reached, *arguments) as running:
        wait_for(reached.exists, running)
        running.send_signal(number)
        ended_well(running, number, data)
    with lastword.open(data) as logs:
        names = {topic.name for topic in logs.topics()}
        assert "new" not in names or command == ("create", "DIR", "new")
        if "new" not in names:
            assert not (data / "lastword.topic-new.toml").exists()
        newest = {record.key: record.value for record in logs.topic("users").read()}
        assert {b"k1", b"k2", b"k3"} <= set(newest)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS[:: stride(2)], ids=lambda number: number.name)
def test_append_whose_input_goes_on_appends_nothing_after_a_signal(data, number):
    with process("-m", "lastword", "append", data, "users") as running:
        running.stdin.write('{"key": "late", "value": "x"}\n')
        running.stdin.flush()
        wait_for(lambda: not (data / MARKER).exists(), running)
        time.sleep(0.3)
        running.send_signal(number)
        ended_well(running, number, data)
    with lastword.open(data) as logs:
        assert logs.topic("users").bounds() == {0: (0, 60)}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS[:: stride(2)], ids=lambda number: number.name)
def test_a_look_ends_where_it_is(data, number):
    with process("-m", "lastword", "read", data, "users", "--follow") as running:
        for _ in range(60):
            running.stdout.readline()
        running.send_signal(number)
        _, stderr = running.communicate(timeout=60)
        assert running.returncode == 128 + number and "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_the_second_signal_ends_at_once(data, tmp_path, number):
    reached = tmp_path / "reached"
    command = SLOW.replace("time.sleep(1.5)", "[time.sleep(0.1) for _ in range(600)]")
    with process("-c", command, "rename", "rewrite-", reached, "clean", data, "users") as running:
        wait_for(reached.exists, running)
        running.send_signal(number)
        time.sleep(0.2)
        running.send_signal(number)  # the second hang-up, as from the shell
        time.sleep(signals.SAME_SECONDS + 0.2)
        assert running.poll() is None
        running.send_signal(number)
        _, said = running.communicate(timeout=10)
        assert running.returncode == 128 + number and "ended immediately" in said
    assert not (data / MARKER).exists()
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        assert {record.key for record in logs.topic("users").read()} == {b"k0", b"k1", b"k2", b"k3"}
        assert logs.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS[:: stride(3)], ids=lambda number: number.name)
def test_an_ignored_signal_stays_ignored(data, tmp_path, number):
    """As under nohup."""
    reached = tmp_path / "reached"
    command = SLOW.replace("import os", "import signal, os", 1).replace(
        "call, part", f"signal.signal({int(number)}, signal.SIG_IGN)\ncall, part", 1
    )
    with process("-c", command, "unlink", MARKER, reached, "clean", data, "users") as running:
        wait_for(reached.exists, running)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 0, said


@each_signal
def test_handlers_are_there_for_one_command_line_only(data, number, capsys):
    before = signal.getsignal(number)
    assert main.run(["ls", str(data)]) == 0
    with lastword.open(data, "a"):
        assert signal.getsignal(number) is before


@each_signal
def test_signals_in_a_thread_are_not_touched(data, number, capsys):
    import threading

    codes = []
    before = signal.getsignal(number)
    thread = threading.Thread(target=lambda: codes.append(main.run(["ls", str(data)])))
    thread.start()
    thread.join(60)
    assert codes == [0] and signal.getsignal(number) is before


def test_expire_ends_between_two_partitions(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "old", partitions=3, cleanup_policy="delete", retention_ms="1h", segment_bytes=2000
        )
        for number in range(90):
            topic.append(b"k", b"." * 100, partition=number % 3, timestamp=1_000_000_000_000)
        answers = iter([False, True])
        (deletion,) = logs.expire(stop=lambda: next(answers))
        assert deletion.partition == 0 and deletion.removes
        assert [deletion.partition for deletion in logs.expire()] == [1, 2]
