"""Messages to bytes and back, and bytes that are no messages."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from lastword.errors import MalformedMessageError, UnencodableMessageError, UnsupportedVersionError
from lastword.protocol import FileRange, codec, decode_stored, encode_stored
from lastword.protocol import codes as error_codes
from lastword.protocol.codecs import MOST_ELEMENTS
from lastword.protocol.messages import (
    ApiVersionsResponse,
    ConsumerGroupMemberMetadataValue,
    FetchResponse,
    ListGroupsRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitKey,
    OffsetCommitValue,
    ProduceRequest,
)
from lastword.protocol.schemas import names, versions
from tests.protocol.random_messages import random_message
from tests.support.exhaustive import stride


@pytest.mark.parametrize("name", names())
def test_every_version_round_trips(name: str) -> None:
    for version in versions(name):
        _round_trips(name, version)


def _round_trips(name: str, version: int) -> None:
    text = codec(name, version)
    for seed in range(6 // stride(2)):
        message = random_message(name, version, random.Random(seed))
        data = text.encode(message)
        assert text.decode(data) == message
        assert text.decode(b"header" + data, 6) == message
        assert text.encode(text.decode(memoryview(data))) == data


@pytest.mark.parametrize("name", names())
def test_every_truncation_and_one_more_byte_are_refused(name: str) -> None:
    for version in versions(name):
        text = codec(name, version)
        data = text.encode(random_message(name, version, random.Random(version)))
        for size in {*range(min(len(data), 40)), len(data) // 2, max(0, len(data) - 1)} - {len(data)}:
            with pytest.raises(MalformedMessageError) as caught:
                text.decode(data[:size])
            assert caught.value.remedy and 0 <= (caught.value.position or 0) <= len(data)
        with pytest.raises(MalformedMessageError, match="1 bytes follow"):
            text.decode(data + b"\0")


def test_names_are_pythons_and_defaults_are_kafkas() -> None:
    message = MetadataRequest()
    assert message.topics == [] and message.allow_auto_topic_creation is True
    topic = MetadataRequest.MetadataRequestTopic(name="users")
    assert topic.topic_id == bytes(16)
    assert MetadataRequest(topics=[topic]) == MetadataRequest(topics=[topic])
    assert MetadataRequest(topics=[topic]) != MetadataRequest()
    assert "topic_id=" in repr(topic) and repr(topic).startswith("MetadataRequest.MetadataRequestTopic(")
    assert MetadataRequest().topics is not MetadataRequest().topics
    assert pickle.loads(pickle.dumps(MetadataRequest(topics=[topic]))) == MetadataRequest(topics=[topic])
    with pytest.raises(TypeError):
        MetadataRequest(topic=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(message)
    with pytest.raises(AttributeError):
        message.topic = []  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from lastword.protocol.messages import NoSuchRequest  # noqa: F401


def test_unknown_tagged_fields_are_skipped_and_known_ones_are_read() -> None:
    text = codec("ApiVersionsResponse", 3)
    message = ApiVersionsResponse(finalized_features_epoch=7)
    data = text.encode(message)
    at = data.index(b"\x01\x01\x08" + struct.pack(">q", 7))  # one tagged field: tag 1, 8 bytes
    unknown = b"\x63\x03abc"
    with_unknown = data[:at] + b"\x02" + data[at + 1 :] + unknown
    assert text.decode(with_unknown) == message
    many = data[:at] + b"\x80\x01" + unknown * 127 + data[at + 1 :]
    assert text.decode(many) == message
    with pytest.raises(MalformedMessageError, match="tagged fields"):
        text.decode(data[:at] + b"\x02" + data[at + 1 :] + b"\x63\xff\xff\x03abc")
    wrong = data.replace(b"\x01\x01\x08", b"\x01\x01\x09") + b"\0"
    with pytest.raises(MalformedMessageError, match="FinalizedFeaturesEpoch"):
        text.decode(wrong)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [(None, "01000100"), (7, "01000701000000070100")],  # by Kafka's own class
)
def test_a_struct_in_a_tagged_field_may_be_null(metadata: int | None, expected: str) -> None:
    kind = ConsumerGroupMemberMetadataValue
    classic = None if metadata is None else kind.ClassicMemberMetadata(session_timeout_ms=metadata)
    message = kind(client_id="c", client_host="h", server_assignor="range", classic_member_metadata=classic)
    data = encode_stored(message, 0)
    assert data.hex().endswith("0672616e6765" + expected)
    assert decode_stored("ConsumerGroupMemberMetadataValue", data).classic_member_metadata == classic


def test_a_value_that_a_version_cannot_carry_is_refused_unless_it_may_be_ignored() -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"ListGroupsRequest v3 has no field StatesFilter"
    ) as caught:
        codec("ListGroupsRequest", 3).encode(ListGroupsRequest(states_filter=["Stable"]))
    assert caught.value.kafka_code == error_codes.UNSUPPORTED_VERSION and caught.value.remedy
    assert codec("ListGroupsRequest", 3).encode(ListGroupsRequest()) == b"\0"
    ignored = codec("MetadataResponse", 0).encode(MetadataResponse(cluster_id="c"))  # ignorable
    assert codec("MetadataResponse", 0).decode(ignored).cluster_id is None
    with pytest.raises(UnsupportedVersionError, match="no version 99"):
        codec("MetadataResponse", 99)
    with pytest.raises(UnsupportedVersionError, match="no message"):
        codec("Metadata", 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"topics": 5}, "Topics"),
        ({"topics": [MetadataRequest.MetadataRequestTopic(name=5)]}, "Topics.Name"),  # type: ignore[arg-type]
        ({"topics": [MetadataRequest.MetadataRequestTopic(name="\ud800")]}, "Topics.Name"),
        ({"topics": [MetadataRequest.MetadataRequestTopic(name="x" * 32768)]}, "Topics.Name"),
        ({"topics": [MetadataRequest.MetadataRequestTopic(topic_id=b"short")]}, "Topics.TopicId"),
        ({"topics": [None]}, "Topics.TopicId"),
    ],
)
def test_a_value_of_another_type_names_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnencodableMessageError, match=f"MetadataRequest v12: {named}: ") as caught:
        codec("MetadataRequest", 12).encode(MetadataRequest(**fields))
    assert caught.value.remedy


HUGE = [
    ("MetadataRequest", 1, struct.pack(">i", 0x7FFFFFFF)),
    ("MetadataRequest", 1, struct.pack(">i", -2)),
    ("MetadataRequest", 1, struct.pack(">i", -(1 << 31))),
    ("MetadataRequest", 12, b"\xff\xff\xff\xff\x0f"),
    ("MetadataRequest", 12, b"\xff" * 11),
    ("MetadataRequest", 12, b"\x80" * 11),
    ("SaslAuthenticateRequest", 1, struct.pack(">i", 0x7FFFFFFF)),
    ("SaslAuthenticateRequest", 2, b"\xff\xff\xff\xff\x0f"),
    ("SaslHandshakeRequest", 1, b"\x7f\xff"),
    ("SaslHandshakeRequest", 1, b"\xff\xfe"),
    ("SaslHandshakeRequest", 1, b"\xff\xff"),  # null, where a string must be
    ("SaslHandshakeRequest", 1, b"\x00\x02\xc3\x28"),  # no UTF-8
    ("ListGroupsRequest", 5, b"\x02\xff\xff\xff\xff\x0f"),
    ("ListGroupsRequest", 5, b"\x01\x01\xff\xff\xff\xff\x0f"),  # 2^32 - 1 tagged fields
]


@pytest.mark.parametrize(("name", "version", "data"), HUGE)
def test_an_announced_length_takes_no_memory(name: str, version: int, data: bytes) -> None:
    text = codec(name, version)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError) as caught:
            text.decode(data + b"\0" * 50)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert caught.value.kafka_code == error_codes.INVALID_REQUEST


def test_all_arrays_of_a_message_together_are_bounded() -> None:
    text = codec("ListGroupsRequest", 5)
    count = MOST_ELEMENTS // 2 + 1
    array = _uvarint(count + 1) + b"\x01" * count
    assert len(text.decode(array + b"\x01\x00").states_filter) == count
    with pytest.raises(MalformedMessageError, match=f"more than {MOST_ELEMENTS} elements"):
        text.decode(array + array + b"\x00")


def _uvarint(number: int) -> bytes:
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    return bytes([*result, number])


@pytest.mark.parametrize("version", versions("ProduceRequest"))
def test_records_are_slices_of_what_was_received(version: int) -> None:
    topic = ProduceRequest.TopicProduceData(name="users" if version < 13 else "", topic_id=bytes(16))
    topic.partition_data = [
        ProduceRequest.PartitionProduceData(index=0, records=b"batch" * 100),
        ProduceRequest.PartitionProduceData(index=1, records=None),
    ]
    text = codec("ProduceRequest", version)
    received = bytearray(text.encode(ProduceRequest(acks=-1, topic_data=[topic])))
    first, second = text.decode(received).topic_data[0].partition_data
    assert isinstance(first.records, memoryview) and first.records.obj is received
    assert first.records == b"batch" * 100 and second.records is None
    at = received.index(b"batch")
    received[at] ^= 0xFF
    assert first.records[0] == received[at]


@pytest.mark.parametrize("version", versions("FetchResponse"))
def test_records_of_a_fetch_stay_what_they_are(version: int) -> None:
    held = FileRange(7, 4096, 1000)
    view = memoryview(b"0123456789")[2:5]
    partitions = [
        FetchResponse.PartitionData(partition_index=0, records=[view, held]),
        FetchResponse.PartitionData(partition_index=1, records=held),
        FetchResponse.PartitionData(partition_index=2, records=b""),
        FetchResponse.PartitionData(partition_index=3, records=None),
    ]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=partitions)])
    text = codec("FetchResponse", version)
    parts = text.encode_parts(response)
    assert parts[1] is view and parts[2] is held and parts[4] is held
    data = b"".join(bytes(len(part)) if isinstance(part, FileRange) else part for part in parts)
    lengths = [0 if p.records is None else len(p.records) for p in text.decode(data).responses[0].partitions]
    assert lengths == [1003, 1000, 0, 0]
    with pytest.raises(UnencodableMessageError, match="records are in a file"):
        text.encode(response)
    partitions[0].records = 5  # type: ignore[assignment]
    with pytest.raises(UnencodableMessageError, match=r"Responses\.Partitions\.Records"):
        text.encode_parts(response)


def test_coordinator_records_have_two_bytes_in_front() -> None:
    key = OffsetCommitKey(group="readers", topic="users", partition=3)
    assert encode_stored(key)[:2] == b"\0\x01"
    assert decode_stored("OffsetCommitKey", encode_stored(key)) == key
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9)
    assert encode_stored(value, 3)[:2] == b"\0\x03"
    assert decode_stored("OffsetCommitValue", encode_stored(value, 3)) == value
    with pytest.raises(MalformedMessageError):
        decode_stored("GroupMetadataKey", encode_stored(key))
    with pytest.raises(MalformedMessageError):
        decode_stored("OffsetCommitValue", b"\0")
    with pytest.raises(UnsupportedVersionError):
        decode_stored("OffsetCommitValue", b"\x7f\xff")


def test_lastword_does_not_load_the_protocol() -> None:
    check = (
        "import sys, lastword\n"
        "assert not [name for name in sys.modules if name.startswith('lastword.protocol')]\n"
        "import lastword.protocol\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'typer', 'asyncio', 'importlib.resources', 'uuid'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_error_codes_of_ours_are_kafkas() -> None:
    from lastword import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "kafka_code")]
    assert len(kinds) > 50
    for kind in kinds:
        assert kind.kafka_code in error_codes.ERROR_NAMES, kind
    assert error_codes.ERROR_NAMES[35] == "UNSUPPORTED_VERSION"
    assert error_codes.LEADER_NOT_AVAILABLE in error_codes.RETRIABLE
