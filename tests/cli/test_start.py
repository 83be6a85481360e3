"""Starting costs little: what a command does not need is not imported."""

import json
import subprocess
import sys
import time

import pytest

HEAVY = ("numba", "pyarrow", "pyspark")
PROBE = f"""
import json, sys
from lastword.cli.main import run
code = run(sys.argv[1:])
print(json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]), file=sys.stderr)
"""


def imported(arguments, cwd, stdin=""):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return names


def test_light_commands_import_nothing_heavy(tmp_path):
    for arguments in (
        ["--help"],
        ["create", "data", "users", "--set", "cleanup.policy=compact"],
        ["config", "data", "users"],
        ["config", "data", "users", "--set", "segment.bytes=1MiB"],
        ["append", "data", "users", "ada", "1", "--ack", "disk"],
        ["read", "data", "users"],
        ["read", "data", "users", "--view", "latest"],
        ["dump", "data/users-0/00000000000000000000.log"],
        ["verify", "data"],
    ):
        assert imported(arguments, tmp_path) == [], arguments
    assert imported(["append", "data", "users"], tmp_path, '{"key": "a", "value": "b"}\n') == []


def test_the_probe_would_notice(tmp_path):
    imported(["create", "data", "users", "--set", "cleanup.policy=compact"], tmp_path)
    assert "numba" in imported(["ls", "data"], tmp_path)


def test_importing_lastword_costs_little_more_than_python():
    """Measured beside NumPy's import in the same run: machines differ, and so does their load."""
    code = (
        "import sys; import {0}; assert not [n for n in ('numba', 'pyarrow', 'pyspark') if n in sys.modules]"
    )

    def seconds(module):
        taken = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code.format(module)], check=True)
            taken.append(time.perf_counter() - started)
        return min(taken)

    assert seconds("lastword") < 0.05 + seconds("numpy")


def test_every_public_name_is_there():
    import lastword

    for name in lastword.__all__:
        if name != "spark":  # needs PySpark
            assert getattr(lastword, name) is not None
    assert set(lastword.__all__) <= set(dir(lastword))
    with pytest.raises(AttributeError):
        _ = lastword.opem
