"""Requests to a broker that Kafka's clients do not send.

They are a ready batch with any producer's id, epoch and sequence, and the marker that ends a transaction
independently of the coordinator's state.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType

PRODUCE, PRODUCE_VERSION = 0, 3
WRITE_TXN_MARKERS, WRITE_TXN_MARKERS_VERSION = 27, 1

NONE, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 0, 45, 47  # error codes


class Wire:
    """One connection to one broker; the partition is always 0."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def produce(self, topic: str, batch: bytes) -> tuple[int, int]:
        """Send a batch with acks=all; return the error code and the base offset."""
        name = topic.encode()
        body = struct.pack(">hhii", -1, -1, 10_000, 1)
        body += struct.pack(">h", len(name)) + name
        body += struct.pack(">iii", 1, 0, len(batch)) + batch
        answer = self._ask(PRODUCE, PRODUCE_VERSION, body)
        position = 4 + 4 + 2 + len(name) + 4  # correlation id, topics, name, partitions
        _, error, base_offset = struct.unpack_from(">ihq", answer, position)
        return error, base_offset

    def end_transaction(self, topic: str, producer_id: int, epoch: int, commit: bool) -> int:
        """Send the end marker of a transaction; return the error code of the partition."""
        name = topic.encode()
        body = b"\x02" + struct.pack(">qh?", producer_id, epoch, commit)  # arrays: length + 1
        body += b"\x02" + bytes([len(name) + 1]) + name + b"\x02" + struct.pack(">i", 0) + b"\0"
        body += struct.pack(">i", 0) + b"\0" + b"\0"  # coordinator epoch, no tagged fields
        answer = self._ask(WRITE_TXN_MARKERS, WRITE_TXN_MARKERS_VERSION, body, flexible=True)
        position = (
            4 + 1 + 1 + 8 + 1 + 1 + len(name) + 1
        )  # correlation id, tags, markers, id, topics, partitions
        partition, error = struct.unpack_from(">ih", answer, position)
        assert partition == 0
        return error

    def _ask(self, key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        header = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if flexible else b"")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection: it could not read the request")
            data += more
        return data
