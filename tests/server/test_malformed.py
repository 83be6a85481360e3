"""Batches with a right checksum and wrong content: refused as by a broker, and readable otherwise."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

import lastword
from lastword.kernels import SLACK
from lastword.protocol.connection import SPARE_BYTES
from lastword.records import produced
from tests.server import malformed
from tests.server.client import Client, batch

MUTANTS = 400


@pytest.fixture(params=["plain", "kernels"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Check batches in plain Python, or by the kernels."""
    monkeypatch.setattr(produced, "_kernels_used", False)
    monkeypatch.setattr(produced, "_plain_records", 0)
    if request.param == "kernels":
        monkeypatch.setattr(produced, "FEW_RECORDS", 0)
        monkeypatch.setattr(produced, "LOADING_RECORDS", 0)
    return str(request.param)


def test_the_answers_are_those_of_a_broker(logs: lastword.LogDir, client: Client, how: str) -> None:
    malformed.create(logs)
    theirs = malformed.saved()
    ours = malformed.answers(client, int(time.time() * 1000))
    assert ours.keys() == theirs.keys()
    different = [
        f"{name}, {topic}: {ours[name][topic]}, Kafka {answer}"
        for name, row in theirs.items()
        for topic, answer in row.items()
        if not malformed.agrees(name, ours[name][topic], answer)
    ]
    assert not different, "\n".join(different)
    malformed.check_readers(logs)


def test_mutated_records_are_refused_or_can_be_read(logs: lastword.LogDir, client: Client, how: str) -> None:
    malformed.create(logs)
    rng = random.Random(3)
    codes = {0: 0, malformed.INVALID_RECORD: 0}
    for _ in range(MUTANTS):
        _, data = malformed.mutated(int(time.time() * 1000), rng)
        for topic in ("plain", "table"):
            codes[malformed.answer(client, topic, data, 0)[0]] += 1
    assert min(codes.values()) > MUTANTS // 10
    malformed.check_readers(logs)


def test_a_large_batch_is_checked_where_it_was_received(
    logs: lastword.LogDir, client: Client, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes behind it are slack of the frame: a batch is copied only if there are too few."""
    logs.create_topic("users")
    seen: list[tuple[int, bool]] = []
    of_class = produced._Arrays.with_slack

    def with_slack(arrays: Any, records: Any, size: int) -> Any:
        raw, start = of_class(arrays, records, size)
        seen.append((size, raw is not arrays.copied and start > 0))
        return raw, start

    monkeypatch.setattr(produced._Arrays, "with_slack", with_slack)
    monkeypatch.setattr(produced, "PLAIN_RECORDS", 0)
    for size in (1000, 300_000):
        data = batch(*[(b"k%d" % n, b"v" * (size // 10)) for n in range(10)])
        assert client.produce("users", data).error_code == 0
        assert seen.pop() == (len(data), size > 1000)
    assert SPARE_BYTES >= SLACK
    assert [record.key for record in logs["users"].read()] == [b"k%d" % n for n in range(10)] * 2
