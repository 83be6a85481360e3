"""Check `lastword dump` of data that only Kafka writes: markers, wrappers, transaction indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastword.cli.main import run
from tests.golden.loader import case


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["dump", *arguments]) == 0
    return capsys.readouterr().out


def test_markers_and_aborted_transactions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = case("tx-delete").unpack(tmp_path) / "data" / "tx-delete-0"
    text = dumped(capsys, str(directory / "00000000000000000000.log"))
    assert "offset 28  2026-" in text and "Z  abort  coordinator epoch 0\n" in text
    assert "transactional, control  CRC" in text
    index = dumped(capsys, str(directory / "00000000000000000000.txnindex"))
    assert index.startswith(
        "aborted, marker at offset 28  producer_id 15  first_offset 0  last_stable_offset 4"
    )
    lines = dumped(capsys, "--json", str(directory / "00000000000000000000.log")).splitlines()
    records = [record for line in lines for record in json.loads(line).get("records", ())]
    markers = [(record["offset"], record["control"]) for record in records if record["control"]]
    assert markers[:2] == [(28, "abort"), (29, "abort")]


def test_old_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(case("v0-gzip").unpack(tmp_path) / "data" / "v0-gzip-0" / "00000000000000000200.log")
    text = dumped(capsys, file).splitlines()
    assert text[-8] == (
        "position 2748  380 bytes  offsets 263-269  7 records  gzip, no time, magic 0  CRC 7d2335f1"
    )
    assert text[-1].startswith("  offset 269  -  key-")
    headers = dumped(capsys, "--no-records", file).splitlines()
    assert headers[-1] == "position 2748  380 bytes  offsets up to 269  gzip, no time, magic 0  CRC 7d2335f1"
