"""`ClusterNode`: which API has which handler.

A handler takes a request and returns its answer, or a future of it. `protocol.schemas.APIS` has all APIs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword.protocol import Request, codes, messages
from lastword.protocol.connection import advertised
from lastword.protocol.schemas import BY_NAME, Message
from lastword.server.admin import Admin
from lastword.server.configs import Configs
from lastword.server.coordinator import TRANSACTION_VERSION, CoordinatorTopic
from lastword.server.fetch import Fetches
from lastword.server.produce import Producing
from lastword.server.topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, Refused

if TYPE_CHECKING:
    from lastword.server.context import Answer, Handler, Handlers, ServerContext
    from lastword.server.groups import Groups
    from lastword.server.security import Peer
    from lastword.server.transactions import TransactionCoordinator

FEATURES = {"transaction.version": TRANSACTION_VERSION, "group.version": 1}
"""Kafka's features whose level decides which versions clients use."""
WITHOUT_VERSION = (
    *(
        "ApiVersions",
        "Produce",
        "Heartbeat",
        "ConsumerGroupHeartbeat",
        "JoinGroup",
        "SyncGroup",
        "LeaveGroup",
    ),
    *("OffsetCommit", "TxnOffsetCommit", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"),
)
"""APIs whose answers follow a commit, or do not depend on the log: in a bucket the others are answered from a
version that was the newest a second ago at most."""
CONFIRMED = {"OffsetFetch", "ListOffsets"}
"""APIs whose answers may not be older than the request: in a bucket the newest version is read before."""
STANDBY_READS = {"ApiVersions", "Metadata", "DescribeCluster", "DescribeTopicPartitions", "FindCoordinator"}
"""APIs that a standby answers as the active server does, from the newest version.

A client connects to any server of the list that it was given. Metadata name all servers, with the active one
as leader, coordinator and controller of everything: some clients forget the list that they were given."""
STANDBY_CODES = {
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


class ClusterNode:
    """The handlers of all APIs: the only node of the cluster that clients see.

    Args:
        context: The context of the handlers.
    """

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        options, topics = context.options, context.topics
        self._groups_topic = CoordinatorTopic(context, GROUPS_TOPIC, options.offsets_partitions)
        self._transactions_topic = CoordinatorTopic(
            context, TRANSACTIONS_TOPIC, options.transactions_partitions
        )
        self._groups: Groups | None = None
        self._transactions: TransactionCoordinator | None = None
        configs = Configs(context)
        self._fetches = Fetches(context)
        self._handlers: dict[int, Handler] = {BY_NAME["ApiVersions"].key: self._api_versions}
        admin = Admin(context, configs, self._fetches, (self._groups_topic, self._transactions_topic))
        self._add(admin.handlers())
        self._add(configs.handlers())
        self._add(Producing(context, lambda: self.transactions).handlers())
        self._add(self._fetches.handlers())
        call_soon = context.loop.call_soon_threadsafe
        topics.on_deleted(lambda names: call_soon(self._topics_deleted, names))
        if context.is_standby:
            return
        # A coordinator with a state starts with the server: leases and transactions end without a request.
        if topics.get(GROUPS_TOPIC) is not None:
            call_soon(self.groups.load_early)
        if topics.get(TRANSACTIONS_TOPIC) is not None:
            call_soon(self.transactions.load_early)

    def _add(self, handlers: Handlers) -> None:
        self._handlers |= {BY_NAME[name].key: handler for name, handler in handlers.items()}

    def handle(self, request: Request[Any], connection: Peer) -> Answer:
        """Return the answer to a request, a future of it, or None if it has none."""
        if self._context.is_standby:
            return self._stand_by(request, connection)
        return self._handle(request, connection)

    def _stand_by(self, request: Request[Any], connection: Peer) -> Answer:
        name = request.api.name
        if name not in STANDBY_READS:
            return refused_by_standby(request)
        if name == "Metadata":
            request.body.allow_auto_topic_creation = False
        if name == "FindCoordinator":
            return self.groups.found(request)
        return self._handle(request, connection)

    def _handle(self, request: Request[Any], connection: Peer) -> Answer:
        handler = self._handlers.get(request.api.key)
        if handler is None:
            from lastword.server.constants import Constants

            self._add(Constants(self._context).handlers())
            self._add(self.groups.handlers())
            self._add(self.transactions.handlers())
            handler = self._handlers[request.api.key]
        if request.api.name in CONFIRMED and self._context.session is not None:
            confirming = self._context.in_pool(self._context.dirs.confirm)
            return self._context.then(confirming, lambda: handler(request, connection))
        if request.api.name in WITHOUT_VERSION or self._context.dirs.is_recent():
            return handler(request, connection)
        return self._context.then(self._context.refreshed(), lambda: handler(request, connection))

    # Their code takes some milliseconds to load, and few tests of a test session have groups or transactions,
    # or ask what a single node does not have. The loop's thread makes all three.

    @property
    def groups(self) -> Groups:
        """Return the coordinator of groups; it is made at its first use."""
        if self._groups is None:
            from lastword.server.groups import Groups

            self._groups = Groups(self._context, self._groups_topic)
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """Return the coordinator of transactions; it is made at its first use."""
        if self._transactions is None:
            from lastword.server.transactions import TransactionCoordinator

            self._transactions = TransactionCoordinator(self._context, self._transactions_topic, self.groups)
        return self._transactions

    def _topics_deleted(self, topics: set[str]) -> None:
        if self._groups is not None:
            self._groups.topics_deleted(topics)

    async def write_leases(self) -> None:
        """Write the leases of groups that are due, so that a cleaning is not late by them."""
        if self._groups is not None:
            await self._groups.leases.write_all()

    def drain(self) -> None:
        """Answer the requests that wait, and all that follow without a wait."""
        self._context.is_closing = True
        self._fetches.answer_all()
        if self._groups is not None:
            self._groups.answer_all()

    def _api_versions(self, request: Request[messages.ApiVersionsRequest], connection: Peer) -> Message:
        body, context = request.body, self._context
        if (body.cluster_id is None) != (body.node_id == -1):
            return messages.ApiVersionsResponse(error_code=codes.INVALID_REQUEST, api_keys=[])
        if body.cluster_id is not None and (body.cluster_id, body.node_id) != (
            context.cluster_id,
            context.node_id,
        ):
            return messages.ApiVersionsResponse(error_code=codes.REBOOTSTRAP_REQUIRED, api_keys=[])
        listed = [
            messages.ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in advertised()
        ]
        return messages.ApiVersionsResponse(
            error_code=request.error,
            api_keys=listed,
            supported_features=[
                messages.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
                for name, level in FEATURES.items()
            ],
            finalized_features_epoch=0,
            finalized_features=[
                messages.ApiVersionsResponse.FinalizedFeatureKey(
                    name=name, max_version_level=level, min_version_level=level
                )
                for name, level in FEATURES.items()
            ],
        )


def refused_by_standby(request: Request[Any]) -> Message:
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
    code = STANDBY_CODES.get(name)
    if code is None or (name == "InitProducerId" and body.transactional_id is None):
        raise Refused(codes.NOT_CONTROLLER, "this server is a standby")
    from lastword.protocol.refusals import refusal_answer

    return refusal_answer(request, code, "this server is a standby")
