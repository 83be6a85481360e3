"""The memory for decompression is shared by all requests, and batches keep to the bound of their topic."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import CorruptBatchError, DecompressionLimitError
from lastword.protocol import codes
from lastword.records import produced
from lastword.records.compression import compress, decompress, most_decompressed
from lastword.server import batches, context
from lastword.server.context import DecompressionBudget
from lastword.server.topics import Refused
from lastword.testing.unsynced import UNSYNCED
from lastword.wire import GZIP, LZ4, SNAPPY, ZSTD
from tests.server.client import Client, batch

MIB = 1 << 20


def test_a_thread_waits_for_the_bytes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = DecompressionBudget(100)
    order: list[str] = []

    def second() -> None:
        with shared.reserved(70):
            order.append("second")

    with shared.reserved(60):
        with shared.reserved(40):
            pass
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    with shared.reserved(1000):  # all there is
        monkeypatch.setattr(context, "WAIT_SECONDS", 0.01)
        with pytest.raises(Refused, match="other requests") as refused, shared.reserved(1):
            pass
    assert refused.value.code == codes.REQUEST_TIMED_OUT
    with shared.reserved(100):
        pass


def test_batches_are_decompressed_within_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now, most = threading.Lock(), 0, 0
    check = produced.check_produced

    def counted(records: Any, header: Any, limits: Any, file: str) -> Any:
        nonlocal now, most
        if limits.decompressed == batches.DECODED_BYTES:  # in the event loop, one at a time
            return check(records, header, limits, file)
        with lock:
            now += 12 * MIB
            most = max(most, now)
        time.sleep(0.02)
        try:
            return check(records, header, limits, file)
        finally:
            with lock:
                now -= 12 * MIB

    monkeypatch.setattr(produced, "check_produced", counted)
    settings: Any = {"lastword_decompression_bytes": "26MiB", "log_cleaner_enable": False}
    with (
        lastword.open(tmp_path / "data", "a", files=UNSYNCED, **settings) as logs,
        lastword.serve(logs, "127.0.0.1:0") as server,
        ThreadPoolExecutor(12) as pool,
    ):
        logs.create_topic("users", cleanup_policy="delete", partitions=12)

        def produce(partition: int) -> int:
            data = batch((b"k", bytes(6 * MIB - 100)), codec=(LZ4, ZSTD)[partition % 2])
            with Client(server, timeout=60) as client:
                answer = client.produce("users", data, partition=partition)
            return int(answer.error_code)

        assert list(pool.map(produce, range(12))) == [0] * 12
    assert 12 * MIB < most <= 26 * MIB


@pytest.mark.parametrize("count", [1, 300])
def test_a_topic_bounds_the_records_of_a_compressed_batch(
    count: int, client: Client, logs: lastword.LogDir
) -> None:
    """The bound is that of the body of a record, as in Kafka 4.4.0."""
    logs.create_topic("users", cleanup_policy="delete", max_decompressed_message_bytes=1000)
    few = [(b"k", b"v" * 900)] * count
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        answer = client.produce("users", batch(*few, (b"k", b"v" * 1000), codec=codec))
        assert answer.error_code == codes.INVALID_RECORD
        assert "max.decompressed.message.bytes" in answer.error_message
        assert client.produce("users", batch(*few, codec=codec)).error_code == 0
    assert client.produce("users", batch(*few, (b"k", b"v" * 1000))).error_code == 0


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_bound_of_a_payload_holds(codec: int) -> None:
    rng = random.Random(codec)
    for size in (0, 1, 100, 70_000, 1_000_000):
        words = [rng.randbytes(rng.randrange(1, 30)) for _ in range(50)]
        for data in (bytes(size), rng.randbytes(size), b"".join(rng.choices(words, k=size // 15))):
            packed = compress(codec, data)
            assert len(data) <= most_decompressed(codec, packed, 1 << 40)
            if codec != GZIP and len(data) > 100_000:
                growth = 20 if codec == ZSTD else 2  # zstd divides its blocks
                assert most_decompressed(codec, packed, 1 << 40) < growth * len(data)
            assert most_decompressed(codec, packed, 50) <= 50
            for _ in range(5):
                damaged = bytearray(packed)
                damaged[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
                bound = most_decompressed(codec, damaged, MIB)
                with contextlib.suppress(CorruptBatchError, DecompressionLimitError):
                    assert len(decompress(codec, bytes(damaged), MIB)) <= bound
