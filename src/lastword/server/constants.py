"""Answers that a cluster of one node without an authorizer gives to the tools of administrators.

No request here changes anything. There are no ACLs, tokens, quotas or credentials of the cluster, no
partition moves to another broker or log directory, each partition has its only leader, and the quorum of the
controllers is this node. A request for a quota, or for another log directory, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lastword.files import real_path
from lastword.protocol import Request, codes, messages
from lastword.protocol.refusals import answer_with_rows, error_answer
from lastword.protocol.schemas import Message
from lastword.server.topics import NOT_HOSTED, Refused, Refusing, check_replicas

if TYPE_CHECKING:
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer

REFUSED: dict[str, tuple[int, str | None]] = {
    "DescribeAcls": (codes.SECURITY_DISABLED, "No Authorizer is configured on the broker"),
    "CreateAcls": (codes.SECURITY_DISABLED, "No Authorizer is configured."),
    "DeleteAcls": (codes.SECURITY_DISABLED, "No Authorizer is configured."),
    "DescribeDelegationToken": (codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, None),
    "SaslHandshake": (codes.ILLEGAL_SASL_STATE, None),
    "SaslAuthenticate": (
        codes.ILLEGAL_SASL_STATE,
        "SaslAuthenticate request received after successful authentication",
    ),
}
"""Error and text of each API that is always refused."""
ANONYMOUS = ("User", "ANONYMOUS")
METADATA_TOPIC = "__cluster_metadata"
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


class Constants:
    """The handlers of the APIs for what a single node does not have."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {
            **dict.fromkeys(REFUSED, _refuse),
            "CreateDelegationToken": self._refuse_token,
            "RenewDelegationToken": self._refuse_token,
            "ExpireDelegationToken": self._refuse_token,
            "DescribeUserScramCredentials": self._describe_credentials,
            "DescribeClientQuotas": lambda *_: messages.DescribeClientQuotasResponse(entries=[]),
            "AlterClientQuotas": self._alter_quotas,
            "ListPartitionReassignments": lambda *_: messages.ListPartitionReassignmentsResponse(
                error_message=None
            ),
            "AlterPartitionReassignments": self._reassign,
            "AlterReplicaLogDirs": self._move,
            "ElectLeaders": self._elect,
            "DescribeQuorum": self._describe_quorum,
            "ListConfigResources": self._list_resources,
        }

    # -------------------------------------------------------------- tokens

    def _refuse_token(self, request: Request[Any], connection: Peer) -> Any:
        answer: Any = error_answer(request, codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, None)
        answer.expiry_timestamp_ms = -1
        if request.api.name == "CreateDelegationToken":
            answer.issue_timestamp_ms = answer.max_timestamp_ms = -1
            answer.principal_type, answer.principal_name = ANONYMOUS
            if request.version >= 3:
                answer.token_requester_principal_type, answer.token_requester_principal_name = ANONYMOUS
        return answer

    # -------------------------------------------------------------- credentials, quotas

    def _describe_credentials(
        self, request: Request[messages.DescribeUserScramCredentialsRequest], connection: Peer
    ) -> Message:
        kind = messages.DescribeUserScramCredentialsResponse
        results = []
        names = [user.name for user in request.body.users or ()]
        for name in dict.fromkeys(names):
            code, text = codes.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist"
            if names.count(name) > 1:
                code = codes.DUPLICATE_RESOURCE
                text = "Cannot describe SCRAM credentials for the same user twice in a single request"
            row = kind.DescribeUserScramCredentialsResult
            results.append(row(user=name, error_code=code, error_message=f"{text}: {name}"))
        return kind(results=results)

    def _alter_quotas(self, request: Request[messages.AlterClientQuotasRequest], connection: Peer) -> Message:
        kind = messages.AlterClientQuotasResponse
        entries = []
        for entry in request.body.entries:
            entity = [
                kind.EntityData(entity_type=e.entity_type, entity_name=e.entity_name) for e in entry.entity
            ]
            text = None if all(change.remove for change in entry.ops) else "This server has no quotas."
            code = codes.NONE if text is None else codes.INVALID_REQUEST
            entries.append(kind.EntryData(entity=entity, error_code=code, error_message=text))
        return kind(entries=entries)

    # -------------------------------------------------------------- partitions

    def _check_exists(self, topic: str, number: int, no_topic: str, no_partition: str) -> None:
        """Raise Refused, with one of two sentences, if there is no such topic or no such partition."""
        served = self._context.topics.get(topic)
        if served is None:
            raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, no_topic.format(topic))
        if number not in served.directories:
            raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, no_partition.format(topic, number))

    def _reassign(
        self, request: Request[messages.AlterPartitionReassignmentsRequest], connection: Peer
    ) -> Any:
        answer, missing = answer_with_rows(request), "Unable to find partition {}:{}."
        answer.error_message = None
        answer.allow_replication_factor_change = request.body.allow_replication_factor_change
        for topic, described in zip(request.body.topics, answer.responses, strict=True):
            for given, result in zip(topic.partitions, described.partitions, strict=True):
                with Refusing(result):
                    number = given.partition_index
                    self._check_exists(topic.name, number, "Unable to find a topic named {}.", missing)
                    if given.replicas is None:
                        raise Refused(codes.NO_REASSIGNMENT_IN_PROGRESS, "")
                    check_replicas(given.replicas, self._context.node_id)
        return answer

    def _move(self, request: Request[messages.AlterReplicaLogDirsRequest], connection: Peer) -> Message:
        """Answer whether each partition is in the given log directory: no request moves one."""
        kind = messages.AlterReplicaLogDirsResponse
        directories = {real_path(log_dir.path) for log_dir in self._context.dirs.directories}
        topics: dict[str, list[Any]] = {}
        for wanted in request.body.dirs:
            for topic in wanted.topics:
                served = self._context.topics.get(topic.name)
                for number in topic.partitions:
                    there = None if served is None else served.directories.get(number)
                    code = codes.LOG_DIR_NOT_FOUND
                    if wanted.path in directories:
                        code = codes.REPLICA_NOT_AVAILABLE
                        if there is not None:
                            is_there = real_path(there.path) == wanted.path
                            code = 0 if is_there else codes.INVALID_REQUEST
                    topics.setdefault(topic.name, []).append(
                        kind.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                    )
        return kind(
            results=[
                kind.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in topics.items()
            ]
        )

    def _elect(self, request: Request[messages.ElectLeadersRequest], connection: Peer) -> Any:
        kind = messages.ElectLeadersResponse
        if request.body.topic_partitions is None:  # a partition whose leader stays is left out
            results = [kind.ReplicaElectionResult(topic=topic.name) for topic in self._context.topics.all()]
            return kind(replica_election_results=results)
        answer, missing = answer_with_rows(request), "No such partition as {}-{}"
        for topic in answer.replica_election_results:
            for result in topic.partition_result:
                with Refusing(result):
                    self._check_exists(topic.topic, result.partition_id, "No such topic as {}", missing)
                    text = "Leader election not needed for topic partition."
                    raise Refused(codes.ELECTION_NOT_NEEDED, text)
        return answer

    # -------------------------------------------------------------- cluster

    def _describe_quorum(self, request: Request[messages.DescribeQuorumRequest], connection: Peer) -> Message:
        kind, context = messages.DescribeQuorumResponse, self._context
        has_nodes = request.version >= 2 and bool(request.body.topics)
        now_ms = context.clock.now_ms()
        topics = []
        for topic in request.body.topics:
            partitions = []
            for wanted in topic.partitions:
                partition = kind.PartitionData(partition_index=wanted.partition_index)
                partitions.append(partition)
                if (topic.topic_name, wanted.partition_index) != (METADATA_TOPIC, 0):
                    partition.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
                    partition.error_message = NOT_HOSTED if has_nodes else ""
                    has_nodes = False
                    continue
                partition.leader_id, partition.leader_epoch, partition.high_watermark = context.node_id, 1, 1
                voter = kind.ReplicaState(replica_id=context.node_id, log_end_offset=1)
                if request.version >= 1:
                    voter.last_fetch_timestamp = voter.last_caught_up_timestamp = now_ms
                partition.current_voters = [voter]
            topics.append(kind.TopicData(topic_name=topic.topic_name, partitions=partitions))
        listener = kind.Listener(name="CONTROLLER", host=context.leader.host, port=context.leader.port)
        nodes = [kind.Node(node_id=context.node_id, listeners=[listener])]
        return kind(topics=topics, nodes=nodes if has_nodes else [])

    def _list_resources(
        self, request: Request[messages.ListConfigResourcesRequest], connection: Peer
    ) -> Message:
        kind = messages.ListConfigResourcesResponse
        given = request.body.resource_types if request.version >= 1 else [CLIENT_METRICS]
        wanted = set(given) or {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
        listed: dict[int, Iterable[str]] = {
            TOPIC: [topic.name for topic in self._context.topics.all()] if TOPIC in wanted else [],
            BROKER_LOGGER: [str(self._context.node_id)],
            BROKER: [str(self._context.node_id)],
        }
        if not wanted <= {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}:
            return kind(error_code=codes.UNSUPPORTED_VERSION, config_resources=[])
        return kind(
            config_resources=[
                kind.ConfigResource(resource_name=name, resource_type=number)
                for number, names in listed.items()
                if number in wanted
                for name in names
            ]
        )


def _refuse(request: Request[Any], connection: Peer) -> Message:
    return error_answer(request, *REFUSED[request.api.name])
