"""`Markers`: append the markers of transactions, whose coordinator decided them, or a tool."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError, StorageError, UnknownTopicError
from lastword.logdir.transaction_state import Partition
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import Message
from lastword.server.transaction_state import Marker

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.server.context import ServerContext
    from lastword.server.groups import Groups


class Markers:
    """Appends markers, and notifies the groups of those that decide offsets."""

    def __init__(self, context: ServerContext, groups: Groups) -> None:
        self._context = context
        self._groups = groups

    async def append(
        self, marker: Marker, partitions: Iterable[Partition]
    ) -> dict[Partition, LastwordError | None]:
        """Append a marker to partitions, and sync those that acknowledge with `disk`.

        Returns:
            The failure of each partition that exists; None where the marker is.
        """
        context, partitions = self._context, sorted(partitions)
        batch = marker.batch(context.clock.now_ms())
        work = partial(append_in, batch=batch, partitions=partitions, fails=StorageError)
        topics = {name for name, _ in partitions}
        committed = context.appended(topics, work, len(batch) * len(partitions))
        if committed is not None:
            failures: dict[Partition, LastwordError | None] = await committed
        else:
            opening = context.open_logs([(context.topics.get(name), number) for name, number in partitions])
            if opening is not None:
                await opening
            failures = append_in(context.dirs, batch, partitions, fails=())
        appended = [partition for partition, failure in failures.items() if failure is None]
        self.decide(marker, appended)
        syncs = [
            (partition, context.in_pool(context.dirs.log(*partition).sync))
            for partition in appended
            if committed is None and context.dirs.config(partition[0]).lastword_ack == "disk"
        ]
        for partition, sync in syncs:
            try:
                await sync
            except LastwordError as error:
                failures[partition] = error
        return failures

    def decide(self, marker: Marker, partitions: Iterable[Partition]) -> None:
        """Take or drop the offsets of a transaction whose marker was appended to partitions."""
        for name, number in partitions:
            if name == self._groups.topic.name:
                self._groups.decide(number, marker.producer_id, marker.is_commit)

    async def write(self, request: Request[messages.WriteTxnMarkersRequest]) -> Message:
        """Append the markers of WriteTxnMarkers: a tool ends a transaction that no coordinator knows."""
        kind = messages.WriteTxnMarkersResponse
        results = []
        for given in request.body.markers:
            marker = Marker(
                given.producer_id, given.producer_epoch, given.transaction_result, given.coordinator_epoch
            )
            wanted = [(topic.name, number) for topic in given.topics for number in topic.partition_indexes]
            if not wanted:
                continue
            is_possible = given.producer_id >= 0 and given.producer_epoch >= 0
            failures = await self.append(marker, set(wanted)) if is_possible else {}
            topics: dict[str, list[Any]] = {}
            for name, number in wanted:
                code = codes.UNKNOWN_TOPIC_OR_PARTITION if is_possible else codes.INVALID_REQUEST
                if (name, number) in failures:
                    failure = failures[name, number]
                    code = codes.NONE if failure is None else failure.kafka_code
                topics.setdefault(name, []).append(
                    kind.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                )
            results.append(
                kind.WritableTxnMarkerResult(
                    producer_id=given.producer_id,
                    topics=[
                        kind.WritableTxnMarkerTopicResult(name=name, partitions=partitions)
                        for name, partitions in topics.items()
                    ],
                )
            )
        return kind(markers=results)


def append_in(
    dirs: OpenDirs, batch: bytes, partitions: Iterable[Partition], fails: Any
) -> dict[Partition, LastwordError | None]:
    """Append a marker to partitions. Return the failure of each that exists; None where the marker is.

    `fails`: the class of the errors that are raised.
    """
    failures: dict[Partition, LastwordError | None] = {}
    for name, number in sorted(partitions):
        if dirs.dir_set.log_dir(name, number) is None:  # the topic was deleted
            continue
        try:
            dirs.log(name, number).append_batch(batch)
            failures[name, number] = None
        except UnknownTopicError:
            continue
        except fails:
            raise
        except LastwordError as error:
            failures[name, number] = error
    return failures
