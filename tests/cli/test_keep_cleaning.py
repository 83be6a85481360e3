"""Check `lastword clean --every` and `ls --metrics` as processes: output, metrics, and two ways to end."""

import json
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import weakref
from contextlib import contextmanager

import pytest

import lastword
from lastword import metrics
from lastword.api import cleaner, monitoring
from lastword.cli import clean, main
from lastword.cli.clean import exporter, parse_address

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        settings = {"segment_bytes": 2000, "min_cleanable_dirty_ratio": 0.1}
        users = logs.create_topic("users", cleanup_policy="compact", **settings)
        others = logs.create_topic("others", cleanup_policy="compact", **settings)
        old = logs.create_topic("old", cleanup_policy="delete", retention_ms="1h", segment_bytes=2000)
        for number in range(60):
            for topic in (users, others):
                topic.append(b"k%d" % (number % 4), b"." * 100)
            old.append(b"k", b"." * 100, timestamp=1_000_000_000_000)
    return tmp_path / "data"


@contextmanager
def running(*arguments, command="clean"):
    # The complaints are written to a file: a full pipe that is never read would stop the process.
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "lastword", command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        process.complaints = complaints
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def said(process):
    process.complaints.seek(0)
    return process.complaints.read()


def lines(process, done):
    rows = []
    while not done(rows):
        line = process.stdout.readline()
        assert line, said(process)
        rows.append(json.loads(line))
    return rows


def test_rounds_and_retention_one_line_each_and_metrics_on_the_loopback(data):
    with running(data, "--every", "50ms", "--metrics", 0, "--max-rate", "200MiB", "--json") as process:

        def both(rows):
            rounds = {row["topic"] for row in rows if row["type"] == "round"}
            return rounds == {"users", "others"} and any(row["type"] == "deletion" for row in rows)

        rows = lines(process, both)
        assert all(row["complete"] for row in rows if row["type"] == "round")
        metrics_row = json.loads(said(process).splitlines()[0])  # port 0 chooses a free port
        assert metrics_row["type"] == "metrics" and metrics_row["address"].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(metrics_row["address"], timeout=10) as answer:
            text = answer.read().decode()
        root = str(data)
        assert f'lastword_cleaner_rounds_total{{dir="{root}",result="ok"}}' in text
        assert "lastword_cleaner_threads_alive 1.0" in text
        versions = f'python="{platform.python_version()}",version="{lastword.__version__}"'
        assert f"lastword_build_info{{{versions}}} 1.0" in text
        checked = re.search(
            r'^lastword_cleaner_last_check_timestamp_seconds\{drive=".*"\} (\S+)$', text, re.M
        )
        assert checked and abs(float(checked[1]) - time.time()) < 60
        assert f'lastword_cleaner_last_pick_timestamp_seconds{{dir="{root}"}}' in text
        assert 'lastword_log_dirty_ratio{partition="0",topic="users"}' in text
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(metrics_row["address"].replace("metrics", "elsewhere"), timeout=10)
        with pytest.raises(lastword.errors.BusyError):
            lastword.open(data, "a")
        process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 0
        summary = rest[-1]
        assert summary["type"] == "summary" and summary["ok"] and summary["freed_bytes"] > 0
        assert summary["rounds"] == sum(row["type"] == "round" for row in rows + rest) >= 2
    with lastword.open(data) as logs:
        assert {record.key for record in logs.topic("users").read()} == {b"k0", b"k1", b"k2", b"k3"}
        assert logs.verify().ok


def test_figures_beside_a_process_with_the_lock(data):
    with (
        lastword.open(data, "a", log_cleaner_enable=False) as logs,
        running(data, "--metrics", 0, "--every", "100ms", "--json", command="ls") as process,
    ):
        first, second = lines(process, lambda rows: len(rows) == 2)
        assert first["partitions"] == 3 and first["read_bytes"] > 0 == second["read_bytes"]
        address = json.loads(said(process).splitlines()[0])["address"]
        broken = next(iter(sorted((data / "others-0").glob("*.log"))))
        broken.write_bytes(broken.read_bytes()[:-1])
        rows = lines(process, lambda rows: rows and (rows[-1]["errors"] or len(rows) == 50))
        assert rows[-1]["partitions"] == 2 and list(rows[-1]["errors"]) == ["others-0"]
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        size = sum(segment.size_bytes for segment in logs["users"].segments())
        assert f'lastword_log_size_bytes{{partition="0",topic="users"}} {float(size)}' in text
        assert re.search(r'^lastword_log_garbage_bytes\{exact="true",.*topic="users"\} [1-9]', text, re.M)
        assert f'lastword_monitor_failed_partitions{{dir="{data}"}} 1.0' in text
        assert 'lastword_log_size_bytes{partition="0",topic="others"}' not in text
        process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 0 and rest[-1]["type"] == "summary" and not rest[-1]["ok"]
        warnings = [line for line in said(process).splitlines() if '"warning"' in line]
        assert len(warnings) == 1, "an error that stays is shown once"


def test_a_pass_that_a_signal_stops_keeps_what_the_last_one_found(data, monkeypatch, capsys):
    passes = iter([{"others-0": "damaged"}, {}])

    def measure(monitor, stopped):
        errors = next(passes)
        if not errors:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped()
        return monitoring.Pass(1, 0, 0.0, errors)

    monkeypatch.setattr(monitoring.Monitor, "measure", measure)
    assert main.run(["ls", str(data), "--metrics", "0", "--every", "10ms", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out.splitlines()[-1])["ok"]


def test_ctrl_c_ends_a_round_at_a_safe_point_and_with_130(data):
    with running(data, "users", "--every", "10ms", "--max-rate", "500", "-v") as process:
        while "\n" not in said(process):
            assert process.poll() is None
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):  # at 500 bytes a second it takes half a minute
            process.wait(1.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert said(process).startswith("cleaning what is due every 10 ms")
        assert "interrupted: stopped at a safe point" in said(process)
    assert not list(data.rglob("rewrite-*"))
    assert (data / ".kafka_cleanshutdown").exists()
    with lastword.open(data) as logs:
        assert len(list(logs.topic("users").read())) == 60


def test_a_signal_that_comes_late_is_seen(tmp_path, monkeypatch):
    """On a busy machine the wait may end before the signal is handled, while nothing is due."""
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="compact")

    def late(*given):
        time.sleep(2 * clean.POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    def running_then(*given):
        run_for(*given)
        signal.setitimer(signal.ITIMER_REAL, 1.5 * clean.POLL_SECONDS)

    run_for = cleaner.Background.run_for
    monkeypatch.setattr(cleaner.Background, "run_for", running_then)
    before = signal.signal(signal.SIGALRM, late)
    try:
        assert main.run(["clean", str(tmp_path / "data"), "--every", "1h"]) == 0
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "text, address",
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("metrics.example:9464", ("metrics.example", 9464)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":", "x", ":9464", "localhost:", "localhost:x", "65536", "-1", "::1:9464", "\u0663"]
)
def test_what_is_no_address(text):
    with pytest.raises(lastword.errors.UsageError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_metrics_of_other_interfaces(host):
    """Another container reads the metrics at an address other than the loopback's."""
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with exporter(host, 0) as url:
        assert url.startswith(f"http://{host}:" if host == "0.0.0.0" else "http://[::1]:")
        with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.2"), timeout=10) as answer:
            assert b"lastword_build_info" in answer.read()


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/elsewhere", 404)])
def test_a_head_of_the_metrics_has_the_headers_and_no_body(path, status):
    with exporter("127.0.0.1", 0) as url:
        address = "127.0.0.1", int(url.split(":")[2].split("/")[0])
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    head, end, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 %d " % status) and b"Content-Length: " in head
    assert (end, body) == (b"\r\n\r\n", b"")


def test_a_client_of_the_metrics_that_goes_or_sends_nothing(monkeypatch, capfd):
    monkeypatch.setattr(clean, "METRICS_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(metrics, "_measured", weakref.WeakSet())  # nothing that other tests left: 16 MB
    monkeypatch.setattr(metrics, "_all", [metrics.BUILD_INFO])
    with exporter("127.0.0.1", 0) as url:
        address = "127.0.0.1", int(url.split(":")[2].split("/")[0])
        for request in (b"GET /metrics HTTP/1.0\r\n\r\n", b"GET"):
            with socket.create_connection(address) as leaving:
                leaving.sendall(request)
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        with socket.create_connection(address, timeout=10) as silent:
            assert silent.recv(1) == b""
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"lastword_build_info" in answer.read()
    assert capfd.readouterr().err == ""


def test_an_address_that_is_not_this_machines():
    with (
        pytest.raises(lastword.errors.UsageError, match=r"cannot listen on 192\.0\.2\.1:9464"),
        exporter("192.0.2.1", 9464),
    ):
        pass


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_text_has_the_time_of_each_round(data):
    with running(data, "users", "--every", "50ms") as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?Z  users-0: ", line)
