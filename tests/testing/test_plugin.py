"""The pytest plugin: found without configuration, cheap until it is used, the same under pytest-xdist."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOADS = """
import sys
import pytest
before = set(sys.modules)
import lastword.testing.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""

TESTS = """
import asyncio
import os
import aiokafka
import pytest

SEEN = set()

@pytest.mark.parametrize("number", range(6))
def test_each_has_its_own(kafka_broker, logs, number):
    assert kafka_broker.bootstrap_servers not in SEEN
    SEEN.add(kafka_broker.bootstrap_servers)
    assert list(kafka_broker.logs) == []
    assert list(logs) == []
    kafka_broker.create_topic("users")
    assert os.environ["PYTEST_XDIST_WORKER"]

def test_asyncio(kafka_broker):
    async def go():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
        await producer.start()
        await producer.send_and_wait("users", b"1", b"a")
        kafka_broker.drop_connections()
        await producer.send_and_wait("users", b"2", b"a")
        await producer.stop()
    asyncio.run(go())
    assert [record.value for record in kafka_broker.topic("users").read()] == [b"1", b"2"]
"""


def run(*arguments: str, cwd: Path, path: str = "") -> str:
    paths = os.pathsep.join(filter(None, (path, str(ROOT / "src"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_loading_the_plugin_imports_nothing_else_of_the_package(tmp_path: Path) -> None:
    loaded = set(run("-c", LOADS, cwd=tmp_path).split())
    assert {name for name in loaded if name.startswith("lastword")} == {
        "lastword",
        "lastword.clock",
        "lastword.testing",
        "lastword.testing.pytest_plugin",
        "lastword.version",
    }
    assert len(loaded) < 12, loaded


BROKER = """
import sys
from lastword.testing.broker import Broker
with Broker():
    print(*sys.modules)
"""
NEEDED_LATER = {
    "lastword.accounts",
    "lastword.background",
    "lastword.cleaner",
    "lastword.kernels",
    "lastword.objects.remote",
    "lastword.resolve",
    "lastword.retention",
    "lastword.server.security",
    "lastword.state",
    "numpy",
    "pyarrow",
    "secrets",
    "tomlkit",
}


def test_the_first_broker_loads_few_modules(tmp_path: Path) -> None:
    """The first broker of a session takes as long as these modules."""
    loaded = set(run("-c", BROKER, cwd=tmp_path).split())
    assert not loaded & NEEDED_LATER
    assert len([name for name in loaded if name.startswith("lastword")]) <= 111


@pytest.mark.slow
def test_an_installed_package_brings_its_fixtures(tmp_path: Path) -> None:
    pytest.importorskip("aiokafka")
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    metadata = tmp_path / "installed" / "lastword-0.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lastword\nVersion: 0.0.0\n")
    lines = [f"{name} = {module}\n" for name, module in entry_points.items()]
    (metadata / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(TESTS)
    (tests / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    shown = run("-m", "pytest", "-n", "2", cwd=tests, path=str(metadata.parent))
    assert "7 passed" in shown
