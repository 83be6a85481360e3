"""Histories of a server over a bucket that fails, and faults that they find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lastword.api.open_dirs import OpenDirs
from lastword.errors import StorageError
from lastword.logdir.transaction_state import PREPARE_COMMIT, TransactionState, key_of
from lastword.partition import open as opening
from lastword.partition import snapshots
from lastword.partition.producer_state import ProducerState
from lastword.partition.snapshots import Replayed, Snapshots
from lastword.server import produce, transactions
from lastword.server.coordinator import CoordinatorTopic
from lastword.server.produce import Checked, CheckedBatch, Producing
from lastword.server.transaction_state import DECIDED, Marker, TransactionalId
from lastword.server.transactions import TransactionCoordinator
from tests.server.bucket.histories import History, Peer, Violation
from tests.support.exhaustive import EXHAUSTIVE

OWN = True
HISTORIES, GROUP = (20_000 if EXHAUSTIVE else 120), 20
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The server logs each failure of the store."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, HISTORIES, GROUP))
def test_histories(first: int) -> None:
    for seed in range(first, first + GROUP):
        History(seed).run()


@pytest.mark.quick
def test_some_histories() -> None:
    for seed in range(5):
        History(seed).run()


# ---------------------------------------------------------------- planted faults


def acknowledges_before_the_swap(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Producing, request: Any, checked: Checked, connection: Any) -> Any:
        def work(dirs: OpenDirs) -> None:
            for batch in checked.batches:
                with produce._refusing(batch.partition, fails=(StorageError,)):
                    self._append(dirs.log(batch.topic, batch.partition.index), batch)

        for batch in checked.batches:
            batch.partition.base_offset = batch.log.log_end
        self._context.appended({batch.topic for batch in checked.batches}, work, request.size)
        return checked.answer

    patch.setattr(Producing, "_commit", commit)


def gives_offsets_before_the_rebase(patch: pytest.MonkeyPatch) -> None:
    append = Producing._append

    def append_once(self: Producing, log: Any, batch: CheckedBatch) -> None:
        first = batch.partition.base_offset
        append(self, log, batch)
        if first >= 0:
            batch.partition.base_offset = first

    patch.setattr(Producing, "_append", append_once)


def decides_in_a_swap_before_the_markers(patch: pytest.MonkeyPatch) -> None:
    async def end(
        self: TransactionCoordinator, transaction: TransactionalId, decision: TransactionState
    ) -> None:
        names = ("state", "epoch", "last_epoch", "next_producer_id", "client_version", "start_ms")
        if transaction.stored.state not in DECIDED:
            await self._change(transaction, **{name: getattr(decision, name) for name in names})
        stored = transaction.stored
        marker = Marker(stored.producer_id, stored.epoch, stored.state == PREPARE_COMMIT, 0)
        await self._markers.append(marker, stored.partitions)
        await self._change(transaction, has_effect=False, **transactions._ended(stored))

    patch.setattr(TransactionCoordinator, "_end_together", end)


def ends_in_a_swap_before_the_markers(patch: pytest.MonkeyPatch) -> None:
    async def end(
        self: TransactionCoordinator, transaction: TransactionalId, decision: TransactionState
    ) -> None:
        marker = Marker(decision.producer_id, decision.epoch, decision.state == PREPARE_COMMIT, 0)
        fields = transactions._ended(decision)
        ended = replace(decision, previous_producer_id=decision.producer_id, **fields)
        record = key_of(transaction.id), ended.value()
        stored = self.topic.append(self.topic.partition_of(transaction.id), [record])
        assert stored is not None
        await stored
        transaction.stored = ended
        await self._markers.append(marker, decision.partitions)

    patch.setattr(TransactionCoordinator, "_end_together", end)


def answers_from_what_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorTopic, "answered", lambda self, answer: answer)


def knows_the_last_batch_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "complete", lambda self, producer_id, read: False)


def goes_on_behind_a_batch_that_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Peer, "has_failed", property(lambda self: False, lambda self, value: None))


def admits_behind_a_batch_that_was_not_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Peer, "awaited", property(lambda self: {}, lambda self, value: None), raising=False)


def reads_a_snapshot_without_the_batches_above_it(patch: pytest.MonkeyPatch) -> None:
    def replay(store: Snapshots, segments: Any, log_end: int, **given: Any) -> Replayed:
        result = snapshots.replay(store, segments, max(store.offsets()), **{**given, "limit": None})
        result.state.end_offset, result.exact = log_end, True
        return result

    patch.setattr(opening, "replay", replay)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "rules", "first"),
    [
        (acknowledges_before_the_swap, {"lost", "code", "order"}, 0),
        (gives_offsets_before_the_rebase, {"lost"}, 0),
        (decides_in_a_swap_before_the_markers, {"decided"}, 0),
        (ends_in_a_swap_before_the_markers, {"half"}, 0),
        (answers_from_what_is_not_stored, {"offset-back"}, 0),
        (knows_the_last_batch_only, {"code"}, 0),
        (goes_on_behind_a_batch_that_is_sent_again, {"code", "order"}, 30),
        (admits_behind_a_batch_that_was_not_admitted, {"code"}, 26),
        (reads_a_snapshot_without_the_batches_above_it, {"code", "twice"}, 0),
    ],
)
def test_a_planted_fault_is_found(
    plant: Plant, rules: set[str], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(first, first + 60):
        try:
            History(seed).run()
        except Violation as violation:
            assert violation.rule in rules
            return
    pytest.fail("60 histories violate no rule")
