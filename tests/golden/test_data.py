"""Tests of the golden data: every file is the recorded file; unpacking keeps all that Kafka's rules check."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.golden import loader


def test_every_file_is_the_recorded_one() -> None:
    listed = {}
    for line in (loader.DATA / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ", 1)
        listed[name] = digest
    present = {
        str(path.relative_to(loader.DATA)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in loader.DATA.glob("*/*")
    }
    assert present == listed


def test_unpacking_gives_the_recorded_bytes_and_times(tmp_path: Path) -> None:
    golden = loader.case("v2-none")
    golden.unpack(tmp_path)
    for stage, files in golden.facts["files"].items():
        for name, facts in files.items():
            path = tmp_path / stage / name
            assert hashlib.sha256(path.read_bytes()).hexdigest() == facts["sha256"], name
            assert path.stat().st_mtime_ns // 1_000_000 == facts["mtime_ms"], name
