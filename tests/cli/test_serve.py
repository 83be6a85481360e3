"""Check `lastword serve` as a process: its first line, its clients, its lock, metrics, and how it ends."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.cli import main
from lastword.cli import serve as cli_serve
from lastword.protocol.messages import MetadataRequest
from lastword.server.security import credentials, write_users
from tests.cli.test_examples import HELPED, console_lines
from tests.server.certificates import Pem, made_pem
from tests.server.client import Client, batch, produce_request
from tests.support.waiting import until

MARKER = ".kafka_cleanshutdown"


class Served:
    """A process of `lastword serve`, with the address of its first line."""

    def __init__(self, process: subprocess.Popen[str], complaints: Any) -> None:
        self.process = process
        self._complaints = complaints
        assert process.stdout is not None
        self.first = process.stdout.readline()
        address = re.search(r"127\.0\.0\.1:(\d+)", self.first)
        assert address, self.said()
        self.host, self.port = "127.0.0.1", int(address[1])

    def said(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()

    def ended(self, number: int, seconds: float = 20) -> str:
        """Send a signal; return the rest of stdout."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=seconds)
        assert "Traceback" not in self.said()
        return rest


@contextlib.contextmanager
def serving(*arguments: Any) -> Iterator[Served]:
    with tempfile.TemporaryFile("w+") as complaints:
        command = [sys.executable, "-m", "lastword", "serve", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
        try:
            yield Served(process, complaints)
        finally:
            process.kill()
            process.communicate()


def test_a_process_serves_and_ends_with_its_log_synced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--listen", "127.0.0.1:0", "--partitions", "2", "--metrics", "0", "--json") as server:
        row = json.loads(server.first)
        assert row["type"] == "serving" and row["topics"] == row["partitions"] == 0
        assert row["pid"] == server.process.pid and row["log_dirs"] == [str(data)]
        with Client(server) as client:  # type: ignore[arg-type]
            name = MetadataRequest.MetadataRequestTopic(name="users")
            (topic,) = client.ask(MetadataRequest(topics=[name])).topics
            assert len(topic.partitions) == 2
            assert client.produce("users", batch((b"ada", b"1"))).error_code == 0
            metrics_row = json.loads(server.said().splitlines()[0])
            with urllib.request.urlopen(metrics_row["address"], timeout=10) as answer:
                exported = answer.read().decode()
                assert 'lastword_log_end_offset{partition="0",topic="users"} 1.0' in exported
                assert 'lastword_append_records_total{topic="users"} 1.0' in exported
                assert 'lastword_server_requests_total{api="Produce",error="NONE"} 1.0' in exported
                assert f'lastword_server_connections{{address="127.0.0.1:{server.port}"}} 1.0' in exported
            with pytest.raises(lastword.errors.BusyError):
                lastword.open(data, "a")
            summary = json.loads(server.ended(signal.SIGTERM))
    assert server.process.returncode == 0 and summary == {"type": "summary", "ok": True}
    assert (data / MARKER).exists()
    with lastword.open(data) as logs:
        assert [record.key for record in logs.topic("users").read()] == [b"ada"]
        assert logs.verify().ok


def test_a_line_of_the_log_has_the_client_and_its_request_as_fields(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0", "--json") as server:
        with Client(server) as client:  # type: ignore[arg-type]
            peer = "{}:{}".format(*client.socket.getsockname())
            client.send(produce_request("_no/topic", batch((b"ada", b"1")), acks=0), 9)
            assert client.socket.recv(1) == b""
        server.ended(signal.SIGTERM)
        rows = [json.loads(line) for line in server.said().splitlines()]
    (row,) = [row for row in rows if row["type"] == "log"]
    assert row.pop("timestamp") > 0 and row.pop("message").startswith(f"{peer}: closed: ")
    request = {"client_id": "tests", "api": "Produce", "api_key": 0}
    assert row == {"type": "log", "level": "info", "peer": peer, **request}


@pytest.mark.slow
def test_ctrl_c_answers_what_was_received(tmp_path: Path) -> None:
    """Producers send while the signal comes: what is acknowledged is there, once."""
    data, acknowledged = tmp_path / "data", []
    with serving(data, "--listen", "127.0.0.1:0") as server:
        assert server.first.startswith(f"serving {data} on 127.0.0.1:{server.port} · cluster ")
        assert server.first.endswith(" · 0 topics, 0 partitions · Ctrl-C stops\n")
        with Client(server) as client:  # type: ignore[arg-type]
            client.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="users")]))
            enough = threading.Event()

            def produce(name: int) -> None:
                with contextlib.suppress(OSError), Client(server) as producer:  # type: ignore[arg-type]
                    for number in range(1_000_000):
                        key = b"%d-%d" % (name, number)
                        answer = producer.produce("users", batch((key, b"v")))
                        assert answer.error_code == 0
                        acknowledged.append((answer.base_offset, key))
                        if len(acknowledged) > 200:
                            enough.set()

            threads = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            assert enough.wait(20)
            rest = server.ended(signal.SIGINT)
            for thread in threads:
                thread.join(20)
        assert server.process.returncode == 0, server.said()
    assert rest == "stopped: requests that were received are answered, the log is synced\n"
    assert (data / MARKER).exists()
    with lastword.open(data) as logs:
        stored = [(record.offset, record.key) for record in logs.topic("users").read()]
    assert set(acknowledged) <= set(stored)
    assert len({key for _, key in stored}) == len(stored) <= len(acknowledged) + 4


@pytest.mark.slow
def test_a_hang_up_ends_it_with_129_and_the_cleaner_runs_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", cleanup_policy="compact", segment_bytes=2000)
        for number in range(100):
            users.append(b"k%d" % (number % 3), b"." * 100)
        size = logs.topic("users").describe()[0].size_bytes
    monkeypatch.setenv("LASTWORD_LOG_CLEANER_BACKOFF_MS", "50")
    with serving(data, "--listen", "127.0.0.1:0", "-v") as server:
        assert "· 1 topic, 1 partition ·" in server.first
        with Client(server) as client:  # type: ignore[arg-type]
            assert client.ask(MetadataRequest(topics=None)).topics[0].name == "users"

        def cleaned() -> bool:
            with lastword.open(data) as logs:
                return logs.topic("users").describe()[0].size_bytes < size / 2

        until(cleaned, 30, pause=0.1)
        server.ended(signal.SIGHUP)
        assert server.process.returncode == 129 and "ended by SIGHUP" in server.said()


def test_a_port_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = main.run(["serve", str(tmp_path / "other"), "--listen", address])
    assert code == 2 and "Address already in use" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


EXAMPLES = [line for line in HELPED["serve"] if line.startswith("lastword serve")] + [
    line
    for page in ("README.md", "docs/server.md")
    for line in console_lines(page)
    if line.startswith("lastword serve")
]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return made_pem(tmp_path_factory.mktemp("pem"))


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(
    line: str, pem: Pem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each example serves; ports are replaced by free ones."""
    monkeypatch.chdir(tmp_path)
    for name, path in zip(("ca.pem", "cert.pem", "key.pem"), pem, strict=True):
        shutil.copy(path, name)
    write_users("users.toml", {"ada": credentials("secret")})
    monkeypatch.setattr(cli_serve.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
    words = re.sub(r"(--listen \S+:|--metrics )\d+", r"\g<1>0", line).partition(" #")[0].split()[1:]
    words += ["--console-listen", "127.0.0.1:0"] if "--console" in words else []
    assert main.run(words if "--listen" in words else [*words, "--listen", "127.0.0.1:0"]) == 0
    assert "serving" in capsys.readouterr().out


@pytest.mark.parametrize("line", HELPED["console"])
def test_examples_of_the_console(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lastword.open("data", "a").close()
    monkeypatch.setattr(cli_serve.time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
    assert main.run([*line.split()[1:], "--listen", "127.0.0.1:0"]) == 0
    assert "?token=" in capsys.readouterr().out


def test_the_page_of_a_server_has_its_users_and_its_certificate(pem: Pem, tmp_path: Path) -> None:
    write_users(str(tmp_path / "users.toml"), {"ada": credentials("secret")})
    ca, cert, key = pem
    options = ("--users", tmp_path / "users.toml", "--tls-cert", cert, "--tls-key", key)
    page = ("--console", "--console-listen", "127.0.0.1:0")
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0", "--json", *options, *page) as server:
        url = json.loads(server.first)["url"]
        assert url.startswith("https://127.0.0.1:") and "token" not in url
        context = ssl.create_default_context(cafile=ca)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, context=context)
        assert refused.value.code == 401
        login = base64.b64encode(b"ada:secret").decode()
        request = urllib.request.Request(f"{url}api/overview", headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, context=context) as answer:
            assert json.load(answer)["mode"] == "a"
        server.ended(signal.SIGTERM)
        assert server.process.returncode == 0
