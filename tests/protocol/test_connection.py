"""Both ends of a connection, without a socket."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from lastword.errors import FrameTooLargeError, MalformedMessageError, UnsupportedVersionError
from lastword.protocol import ClientConnection, FileRange, ServerConnection, codec
from lastword.protocol.codes import NONE, UNSUPPORTED_VERSION
from lastword.protocol.connection import advertised
from lastword.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from lastword.protocol.schemas import APIS
from tests.protocol import mutants
from tests.protocol.random_messages import random_message

EVERY = [(api, version) for api in APIS.values() for version in range(api.first, api.last + 1)]


def test_every_api_and_version_makes_the_round_trip() -> None:
    rng = random.Random(3)
    client, server = ClientConnection("me"), ServerConnection()
    for api, version in EVERY:
        body = random_message(f"{api.name}Request", version, rng)
        if api.name == "Produce":
            body.acks = 1
        (request,) = server.receive_data(b"".join(client.request(body, version)))
        assert request[:2] == (api, version) and request.body == body and request.client_id == "me"
        answer = random_message(f"{api.name}Response", version, rng)
        if api.name == "ApiVersions":
            answer.error_code = NONE
        (response,) = client.receive_data(b"".join(server.response(request, answer)))
        assert (response.api, response.version, response.body) == (api, version, answer)
    assert server.waiting == 0


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64, 10_000])
def test_pieces_of_any_size_give_the_same_requests(piece: int) -> None:
    client, server = ClientConnection(None), ServerConnection()
    topics = [MetadataRequest.MetadataRequestTopic(name=f"topic-{number}") for number in range(30)]
    data = b"".join(b"".join(client.request(MetadataRequest(topics=topics[:n]), 9)) for n in range(30))
    requests = []
    for start in range(0, len(data), piece):
        requests += server.receive_data(data[start : start + piece])
    assert [len(request.body.topics) for request in requests] == list(range(30))
    assert [request.correlation_id for request in requests] == list(range(30))
    assert requests[0].client_id is None and server.waiting == 0


def test_requests_that_were_left_are_given_with_the_next_call() -> None:
    client, server = ClientConnection(), ServerConnection()
    data = b"".join(b"".join(client.request(MetadataRequest(), 9)) for _ in range(5))
    assert next(server.receive_data(data[:-3])).correlation_id == 0
    assert server.waiting > 0
    assert [request.correlation_id for request in server.receive_data(data[-3:])] == [1, 2, 3, 4]
    assert list(server.receive_data(b"")) == []


def test_a_whole_frame_is_not_copied() -> None:
    batch = b"\x17" * (1 << 20)
    topic = ProduceRequest.TopicProduceData(
        name="users", partition_data=[ProduceRequest.PartitionProduceData(records=batch)]
    )
    client, server = ClientConnection(), ServerConnection()
    data = b"".join(client.request(ProduceRequest(acks=1, topic_data=[topic]), 9))
    tracemalloc.start()
    (request,) = server.receive_data(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    records = request.body.topic_data[0].partition_data[0].records
    assert records.obj is data and records == batch
    assert peak < 200_000


def test_a_fetch_is_sent_from_its_file() -> None:
    client, server = ClientConnection(), ServerConnection()
    (request,) = server.receive_data(b"".join(client.request(FetchRequest(), 12)))
    held = FileRange(7, 4096, 1 << 30)
    topic = FetchResponse.FetchableTopicResponse(
        topic="users", partitions=[FetchResponse.PartitionData(records=held)]
    )
    parts = server.response(request, FetchResponse(responses=[topic]))
    assert [part for part in parts if isinstance(part, FileRange)] == [held]
    (size,) = struct.unpack(">i", bytes(parts[0])[:4])
    assert size + 4 == sum(len(part) for part in parts)


def test_api_versions_of_a_newer_client_is_answered_in_version_0() -> None:
    server = ServerConnection()
    header = struct.pack(">hhih", 18, 99, 5, 2) + b"me"
    body = header + b"\0" + b"a body of the future"
    (request,) = server.receive_data(struct.pack(">i", len(body)) + body)
    assert (request.version, request.error, request.correlation_id) == (0, UNSUPPORTED_VERSION, 5)
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in advertised()
    ]
    answer = ApiVersionsResponse(error_code=request.error, api_keys=keys)
    data = b"".join(server.response(request, answer))
    assert struct.unpack_from(">iih", data) == (len(data) - 4, 5, UNSUPPORTED_VERSION)
    assert codec("ApiVersionsResponse", 0).decode(data, 8) == answer

    client = ClientConnection("me")
    client.request(ApiVersionsRequest(), 4)
    (response,) = client.receive_data(data[:4] + struct.pack(">i", 0) + data[8:])
    assert response.version == 0 and response.body.error_code == UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(5))
def test_the_response_header_of_api_versions_never_has_tagged_fields(version: int) -> None:
    client, server = ClientConnection(), ServerConnection()
    (request,) = server.receive_data(b"".join(client.request(ApiVersionsRequest(), version)))
    data = b"".join(server.response(request, ApiVersionsResponse(error_code=7)))
    assert struct.unpack_from(">ih", data, 4) == (0, 7)


def test_produce_is_advertised_from_0_and_refused_below_3() -> None:
    versions = {key: (first, last) for key, first, last in advertised()}
    assert versions[0] == (0, 13) and versions[1] == (4, 18)
    assert versions[22] == (0, 5)  # the newest version is not stable
    assert list(versions) == sorted(APIS)
    for version in range(3):
        server = ServerConnection()
        data = struct.pack(">ihhih", 10, 0, version, 1, -1)
        with pytest.raises(UnsupportedVersionError, match=f"Produce request in version {version}"):
            list(server.receive_data(data))
        with pytest.raises(UnsupportedVersionError):  # for good
            server.receive_data(b"")


def test_an_api_that_is_not_served_is_refused() -> None:
    data = struct.pack(">ihhih", 10, 76, 0, 1, -1)
    with pytest.raises(UnsupportedVersionError, match="API 76"):
        list(ServerConnection().receive_data(data))
    data = struct.pack(">ihhih", 10, 3, 9, 1, -1)
    with pytest.raises(UnsupportedVersionError, match="API 3"):
        list(ServerConnection(apis={18: APIS[18]}).receive_data(data))


def test_the_size_of_a_frame_is_bounded_before_it_is_received() -> None:
    for size in (0x7FFFFFFF, 101 << 20):
        with pytest.raises(FrameTooLargeError) as caught:
            list(ServerConnection().receive_data(struct.pack(">i", size)))
        assert "max_frame" in (caught.value.remedy or "")
    for size in (-1, -(1 << 31), 0, 3):
        with pytest.raises(MalformedMessageError):
            list(ServerConnection().receive_data(struct.pack(">i", size)))
    server = ServerConnection()
    tracemalloc.start()
    assert list(server.receive_data(struct.pack(">i", 99 << 20) + b"x" * 100)) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 and server.waiting == 104


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\0",
        struct.pack(">hhih", 3, 9, 1, 5) + b"abc",
        struct.pack(">hhih", 3, 9, 1, -2),
        struct.pack(">hhih", 3, 9, 1, 2) + b"\xc3\x28",
        struct.pack(">hhih", 3, 9, 1, -1),
        struct.pack(">hhih", 3, 9, 1, -1) + b"\xff" * 11,
        struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x07\x7f",
    ],
)
def test_a_bad_header_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        list(ServerConnection().receive_data(struct.pack(">i", len(frame)) + frame))
    assert caught.value.position is not None and caught.value.remedy


def test_tagged_fields_of_a_header_are_skipped() -> None:
    body = (
        struct.pack(">hhih", 3, 9, 1, -1)
        + b"\x02\x05\x02ab\x07\x00"
        + codec("MetadataRequest", 9).encode(MetadataRequest())
    )
    (request,) = ServerConnection().receive_data(struct.pack(">i", len(body)) + body)
    assert request.body == MetadataRequest()


def test_bytes_behind_a_request_are_ignored_as_in_kafka() -> None:
    """librdkafka 2.16 asks for all topics with an array count of 4 bytes, where one byte is meant."""
    sent = bytes.fromhex("0003000d00000003000772646b61666b6100 00000000 010000")
    server = ServerConnection()
    (request,) = server.receive_data(struct.pack(">i", len(sent)) + sent)
    assert request.api.name == "Metadata" and request.body.topics is None
    assert server.waiting == 0


def test_a_response_must_be_that_of_the_oldest_request() -> None:
    client = ClientConnection()
    client.request(MetadataRequest(), 9)
    client.request(MetadataRequest(), 9)
    answer = struct.pack(">i", 1) + b"\0" + codec("MetadataResponse", 9).encode(MetadataResponse())
    with pytest.raises(MalformedMessageError, match="correlation id 1"):
        list(client.receive_data(struct.pack(">i", len(answer)) + answer))
    with pytest.raises(MalformedMessageError):
        client.receive_data(b"")


def test_no_response_is_expected_for_produce_without_acks() -> None:
    client, server = ClientConnection(), ServerConnection()
    client.request(ProduceRequest(acks=0), 9)
    (request,) = server.receive_data(b"".join(client.request(MetadataRequest(), 9)))
    (response,) = client.receive_data(b"".join(server.response(request, MetadataResponse())))
    assert (response.api.name, response.correlation_id) == ("Metadata", 1)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames_give_messages_or_errors_of_ours(seed: int) -> None:
    results = mutants.run(2_500, seed)
    assert results["accepted"] > 250 and results["refused"] > 1000
