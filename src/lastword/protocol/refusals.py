"""Answers to a request of any API with a row for each of its parts, made from Kafka's schemas."""

from __future__ import annotations

from typing import Any, NamedTuple

from lastword.protocol import codes
from lastword.protocol.connection import Request
from lastword.protocol.schemas import Field, Message, schema_of, within

KEYS = {"name", "topic", "topic_id", "index", "partition", "partition_index", "group_id"}
KEYS |= {"resource_type", "resource_name"}
"""Fields that say which part of a request a part of its answer is for."""
KEYS_OF_ROWS = KEYS | {"member_id", "group_instance_id"}
OF_TOPICS = {codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID, codes.TOPIC_AUTHORIZATION_FAILED}
OF_PARTS: dict[str, set[int]] = {
    "OffsetFetch": {codes.UNSTABLE_OFFSET_COMMIT, *OF_TOPICS},
    "Fetch": {codes.NOT_LEADER_OR_FOLLOWER},
    "OffsetDelete": {codes.GROUP_SUBSCRIBED_TO_TOPIC, *OF_TOPICS},
    "LeaveGroup": {codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID},
    "AlterPartitionReassignments": {
        codes.INVALID_REPLICA_ASSIGNMENT,
        codes.NO_REASSIGNMENT_IN_PROGRESS,
        codes.REASSIGNMENT_IN_PROGRESS,
        *OF_TOPICS,
    },
    "ElectLeaders": {
        codes.ELECTION_NOT_NEEDED,
        codes.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        codes.PREFERRED_LEADER_NOT_AVAILABLE,
        *OF_TOPICS,
    },
    "DescribeQuorum": OF_TOPICS,
}
"""Errors that a broker gives to the single parts of a request, though its answer has room for one of all."""
NOT_NOW = {codes.COORDINATOR_NOT_AVAILABLE, codes.KAFKA_STORAGE_ERROR, codes.REQUEST_TIMED_OUT}
"""Errors that pass. After COORDINATOR_LOAD_IN_PROGRESS alone every client repeats OffsetFetch: after the
first of these, librdkafka 2.16.1 does not read the partitions any more."""
UNKNOWN = ("node_id", "port", "low_watermark", "producer_epoch", "committed_offset", "base_offset")
"""Fields that are -1 in an answer with an error. The schemas give 0 as their default."""


class Refusal(NamedTuple):
    """An error, and whether the single parts of the request have it."""

    code: int
    message: str | None
    is_of_parts: bool


def error_answer(request: Request[Any], code: int, message: str | None) -> Message:
    """Return the answer that refuses a request, with an error for each of its parts.

    Args:
        request: The request.
        code: The code of the error.
        message: Its sentence, for the answers that have one. None: null, where that is allowed.
    """
    return _answer(request, Refusal(code, message, is_of_parts=code in OF_PARTS.get(request.api.name, ())))


def refusal_answer(request: Request[Any], code: int, message: str | None) -> Message:
    """Return the answer as `error_answer` does, but that every client repeats OffsetFetch after it.

    aiokafka 0.14.0 takes an answer without partitions for "no offset is committed", whatever its error.
    """
    if request.api.name != "OffsetFetch":
        return error_answer(request, code, message)
    code = codes.COORDINATOR_LOAD_IN_PROGRESS if code in NOT_NOW else code
    answer = error_answer(request, code, message)
    if request.version < 8:
        answer.topics = _answer(request, Refusal(code, None, is_of_parts=True)).topics  # type: ignore[attr-defined]
    return answer


def answer_with_rows(request: Request[Any]) -> Any:
    """Return the answer to a request, with a row without an error for each of its parts.

    The caller gives the rows their values: a row has the names and numbers of its part.
    """
    return _answer(request, Refusal(codes.NONE, None, is_of_parts=True))


def _answer(request: Request[Any], error: Refusal) -> Message:
    name = request.api.name
    fields, kind = schema_of(f"{name}Response").structs[f"{name}Response"]
    request_fields = schema_of(f"{name}Request").fields
    return _refusal(kind, fields, request.body, request_fields, request.version, error)


def _refusal(
    kind: type[Message],
    fields: list[Field],
    row: Any,
    request_fields: list[Field],
    version: int,
    error: Refusal,
    keys: set[str] = KEYS,
) -> Message:
    """Return a struct with the error, or with rows for those of the request if only its rows have errors."""
    fields = [field for field in fields if within(field.versions, version)]
    request_fields = [field for field in request_fields if within(field.versions, version)]
    values: dict[str, Any] = {name: -1 for name in UNKNOWN if any(field.name == name for field in fields)}
    errors = [field for field in fields if field.name.endswith("error_code") and not field.is_array]
    if error.is_of_parts and any(field.struct is not None and _has_error(field, version) for field in fields):
        errors = []
    for field in fields:
        if field in errors[:1]:
            values[field.name] = error.code
        elif field.name == "error_message" and (errors or not error.is_of_parts):
            values[field.name] = error.message
        elif field.name in keys and any(field.name == key.name for key in request_fields):
            value = getattr(row, field.name)
            if value is not None or within(field.nullable, version):
                values[field.name] = value
        elif field.name == "protocol_name" and within(field.nullable, version):
            values[field.name] = None
        elif field.is_array and field.struct is not None and not errors and _has_error(field, version):
            values[field.name] = _rows(field, row, request_fields, version, error)
    return kind(**values)


def _rows(
    response: Field, row: Any, request_fields: list[Field], version: int, error: Refusal
) -> list[Message]:
    """Return an answer for each element of the first list of a request, if both are of the same things."""
    assert response.struct is not None
    listed = next((field for field in request_fields if field.is_array), None)
    if listed is None:
        return []
    answers: list[Any] = []
    for part in getattr(row, listed.name) or ():
        answer = _refusal(response.struct, response.fields, part, listed.fields, version, error, KEYS_OF_ROWS)
        if listed.struct is None:  # a list of names or numbers
            key = next(f for f in response.fields if f.kind == listed.kind and f.name != "error_message")
            setattr(answer, key.name, part)
        elif any(field.name == "log_dir" for field in response.fields):  # not rows of the request
            return []
        answers.append(answer)
    return answers


def _has_error(field: Field, version: int) -> bool:
    return any(
        within(inner.versions, version) and (inner.name.endswith("error_code") or _has_error(inner, version))
        for inner in field.fields
    )
