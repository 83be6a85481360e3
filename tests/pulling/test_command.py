"""`lastword pull`: results as text and JSON, progress, exit codes, `--follow` until a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.cli.main import run
from lastword.server import Server
from tests.pulling.test_pull import commit, fill, log_end
from tests.support.waiting import until


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = run(["pull", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_text(source: lastword.LogDir, cluster: Server, copy: Path, capsys: Any) -> None:
    fill(source, 20)
    commit(cluster, "readers", "users", {0: 3})
    at = cluster.bootstrap_servers
    assert ran(capsys, at, "--to", copy, "--dry-run") == (
        0,
        "users-0: offsets 0 to 10\nusers-1: offsets 0 to 10\n"
        "would pull 20 offsets at most; nothing was changed\n",
        "",
    )
    assert not copy.exists()
    code, out, err = ran(capsys, at, "users", "--to", copy)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "users-0: 10 records in 10 batches (775 B), from offset 0 to 10",
        "users-1: 10 records in 10 batches (775 B), from offset 0 to 10",
        "pulled 20 records, 1.5 KiB; 1 position of groups",
    ]


def test_json(source: lastword.LogDir, cluster: Server, copy: Path, capsys: Any) -> None:
    fill(source, 4)
    code, out, _ = ran(capsys, cluster.bootstrap_servers, "users", "--to", copy, "--json", "--progress")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["type"] for line in lines]) == (0, ["pull", "pull", "summary"])
    size = lines[0].pop("pulled_bytes")
    assert lines[0] == {
        "type": "pull",
        "topic": "users",
        "partition": 0,
        "log_start": 0,
        "first_offset": 0,
        "next_offset": 2,
        "remote_end": 2,
        "batches": 2,
        "records": 2,
        "gone_offsets": 0,
        "positions": 0,
        "reason": None,
    }
    assert lines[2] == {
        "type": "summary",
        "ok": True,
        "partitions": 2,
        "records": 4,
        "pulled_bytes": 2 * size,
        "positions": 0,
    }


def test_one_topic_of_two_fails(source: lastword.LogDir, cluster: Server, copy: Path, capsys: Any) -> None:
    fill(source, 2)
    fill(source, 2, "events")
    ran(capsys, cluster.bootstrap_servers, "--to", copy)
    source.delete_topic("users")
    fill(source, 2)
    code, out, err = ran(capsys, cluster.bootstrap_servers, "--to", copy)
    assert code == 3
    assert out.splitlines()[0].startswith("events-0: 0 records")
    assert "was deleted and created again" in err


def test_following_until_a_signal(source: lastword.LogDir, cluster: Server, copy: Path) -> None:
    fill(source, 2)
    command = [
        sys.executable,
        "-m",
        "lastword",
        "pull",
        cluster.bootstrap_servers,
        "users",
        "--to",
        str(copy),
    ]
    process = subprocess.Popen([*command, "-f"], stdout=subprocess.PIPE, env=os.environ, text=True)
    try:
        until(lambda: log_end(copy, "users", 1) == 1)
        fill(source, 2)
        until(lambda: log_end(copy, "users", 1) == 2)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "pulled 4 records" in out
    with lastword.open(copy) as logs:
        assert logs.recovery[0].clean is None
        assert (copy / ".kafka_cleanshutdown").exists()
