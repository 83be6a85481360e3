"""What a standby answers: which server is the active one, and refusals that let clients look for it.

A client connects to any server of the list that it was given. Metadata name all servers, with the active one
as leader, coordinator and controller of everything: some clients forget the list that they were given.
"""

from __future__ import annotations

from typing import Any

from lastword.protocol import Request, codes, messages
from lastword.protocol.refusals import error_answer
from lastword.protocol.schemas import Message
from lastword.server.topics import Refused

READS = {"ApiVersions", "Metadata", "DescribeCluster", "DescribeTopicPartitions", "FindCoordinator"}
"""APIs that the handlers of the active server answer, from the newest version."""
_CODES = {
    **dict.fromkeys(
        (
            *("Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
            *("DescribeProducers", "WriteTxnMarkers"),
        ),
        codes.NOT_LEADER_OR_FOLLOWER,
    ),
    **dict.fromkeys(
        (
            *("OffsetCommit", "OffsetFetch", "OffsetDelete", "JoinGroup", "SyncGroup", "Heartbeat"),
            *("LeaveGroup", "DescribeGroups", "DeleteGroups", "ConsumerGroupHeartbeat"),
            *("ConsumerGroupDescribe", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"),
            *("TxnOffsetCommit", "DescribeTransactions", "InitProducerId"),
        ),
        codes.NOT_COORDINATOR,
    ),
    **dict.fromkeys(("CreateTopics", "DeleteTopics", "CreatePartitions"), codes.NOT_CONTROLLER),
}


def refuse(request: Request[Any]) -> Message:
    """Return the answer to a request that only the active server may answer.

    Raises:
        Refused: The connection is to be closed. Clients send such a request to any server, and choose another
            one when the connection ends.
    """
    name, body = request.api.name, request.body
    if name == "ListGroups":  # clients send both to all servers: a standby coordinates nothing
        return messages.ListGroupsResponse()
    if name == "ListTransactions":
        return messages.ListTransactionsResponse()
    code = _CODES.get(name)
    if code is None or (name == "InitProducerId" and body.transactional_id is None):
        raise Refused(codes.NOT_CONTROLLER, "this server is a standby")
    return error_answer(request, code, "this server is a standby")
