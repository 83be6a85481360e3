"""Messages beside kio, a second implementation: recorded ones, and random ones if kio is there."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from lastword.protocol import codec
from tests.protocol.random_messages import EVERY
from tests.protocol.second_opinion import (
    GOLDEN,
    KIO_VERSION,
    PYTHON,
    Case,
    Kio,
    faults,
    message_of,
    misnamed,
    present,
    values_of,
)
from tests.support.exhaustive import stride

RECORDED: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("line", RECORDED, ids=[line["name"] for line in RECORDED])
def test_bytes_of_kio_are_read_and_written(line: dict[str, Any]) -> None:
    name, version, fields = line["name"], line["version"], line["fields"]
    data, text = bytes.fromhex(line["written"]), codec(name, version)
    assert values_of(text.decode(data), present(name, version), version) == fields
    assert text.encode(message_of(fields, name, version)) == data


def test_every_message_is_recorded_but_those_of_internal_topics() -> None:
    names = {name for name, _ in EVERY if not name.endswith(("Key", "Value", "Record"))}
    assert {line["name"] for line in RECORDED} == names


def test_a_planted_difference_is_found() -> None:
    line = next(line for line in RECORDED if line["name"] == "HeartbeatRequest")
    data = bytes.fromhex(line["written"])
    answer = {"parsed": line["fields"], "left": 0, "written": line["written"]}
    case = Case(line["name"], line["version"], line["fields"], data, answer)
    assert not list(faults(case))
    other = [*line["fields"][:-1], "another"]
    for planted in ({"parsed": other}, {"left": 1}, {"written": line["written"][:-2]}):
        assert len(list(faults(replace(case, answer=answer | planted)))) == 1
    assert len(list(faults(replace(case, fields=other)))) == 2


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason=f"kio {KIO_VERSION} is not there; `make second-opinion`")
def test_kio_reads_our_bytes_and_ours_read_those_of_kio() -> None:
    rng = random.Random(16)
    with Kio() as kio:
        assert len(kio.shared) > 400
        wrong = [
            (name, version, fault)
            for name, version in kio.shared[:: stride(3)]
            for fault in faults(kio.ask(name, version, rng))
        ]
        places = [
            place
            for name, version in kio.shared
            for place in misnamed(present(name, version), kio.messages[name, version], version, name)
        ]
    assert not wrong, wrong[:3]
    assert not places
