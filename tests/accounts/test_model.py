"""Random lives of a log, compared with a dict: appends, deletes, transactions, rounds of both strategies over
the log or a run, restarts with and without accounts, truncations, trims.

After every step: the newest values equal the dict's; remaining records keep their offsets, in order; a
tombstone was removed only after `delete.retention.ms` without an older copy of its key on disk; and a
Kafka broker that continues at the checkpoint finds a newer record for each dead record.
"""

import random

import pytest

from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine.liveness import account_of
from lastword.cleaner.engine.transactions import Transactions
from lastword.cleaner.policy.generational import Columns, all_garbage, best_runs
from lastword.config import TopicConfig
from lastword.files import DEFAULT
from lastword.records.batch import BatchBuilder
from lastword.resolve import resolve
from tests.cleaner.test_accounted import HOUR, NOW, Log
from tests.support.cleaning import by_hash as hashes_decide
from tests.support.cleaning import clean
from tests.support.exhaustive import stride
from tests.transactions import end_transaction

CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=900,
    index_interval_bytes=200,
    delete_retention_ms=HOUR,
)


class Model:
    def __init__(self, log):
        self.log = log
        self.seen = {}  # offset to (key, value) of every record appended and not truncated
        self.free_ms = {}  # offset of a tombstone to the time when its last older copy was removed
        self.before = []
        self.open = {}  # producer id to the offsets of its open transaction
        self.hidden = set()  # offsets of aborted and undecided records
        self.sequences = {}
        self.whole_share = 0.3  # of the rounds: over the whole log

    def append(self, key, value):
        self.log.put((key, value))
        self.seen[self.log.log.log_end - 1] = (key, value)

    def append_in_transaction(self, producer_id, key, value):
        sequence = self.sequences.get(producer_id, 0)
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        builder.append(self.log.clock.now_ms(), key, value)
        self.log.log.append_batch(builder.build(0))
        self.sequences[producer_id] = sequence + 1
        offset = self.log.log.log_end - 1
        self.seen[offset] = (key, value)
        self.open.setdefault(producer_id, []).append(offset)
        self.hidden.add(offset)

    def end(self, producer_id, *, commit):
        end_transaction(self.log.log, producer_id, 0, commit=commit)
        offsets = self.open.pop(producer_id)
        if commit:
            self.hidden.difference_update(offsets)

    def check(self, step):
        now_ms = self.log.clock.now_ms()
        records = self.log.records()
        offsets = [offset for offset, _, _ in records]
        assert offsets == sorted(set(offsets)), step
        for offset, key, value in records:
            assert self.seen[offset] == (key, value), step
        newest = {}
        for offset, (key, value) in sorted(self.seen.items()):
            if offset >= self.log.log.log_start and offset not in self.hidden:
                newest[key] = (offset, value)
        there = set(offsets)
        records = [record for record in records if record[0] not in self.hidden]
        held = {}
        for offset, key, value in records:
            if offset >= self.log.log.log_start:
                held[key] = (offset, value)
        for key, (offset, value) in newest.items():
            if value is not None:
                assert held.get(key) == (offset, value), (step, key)
            elif offset not in there:
                assert key not in held, (step, key, "a deleted value came back")
                assert now_ms >= self.free_ms[offset] + HOUR, (step, key, "a tombstone went early")
        self._clocks(records, now_ms)
        checkpoint = self.log.first_dirty
        if checkpoint is not None:
            copies = {}
            for offset, key, _ in records:
                if offset < self.log.ledger.limit:
                    copies.setdefault(key, []).append(offset)
            for key, stored_offsets in copies.items():
                assert len(stored_offsets) == 1 or stored_offsets[-1] >= checkpoint, (
                    step,
                    key,
                    stored_offsets,
                    checkpoint,
                )

    def check_accounts(self, step):
        """Compare the bits of the accounts with those of a scan of the whole log."""
        ledger, log = self.log.ledger, self.log.log
        if not ledger.exact or not ledger.entries or ledger.invalid:
            return
        segments = [segment for segment in log.segments if segment.base_offset < ledger.limit]
        outcomes = Transactions(log.segments, ledger.limit, log.clock.now_ms())
        scanned = resolve(segments, map_bytes=1 << 20, salt=b"salt", now_ms=-1, outcomes=outcomes)
        marked = ledger.tracking.running.dead.offsets()
        marked = set(marked[marked >= ledger.tracking.first_offset].tolist())
        due = set(ledger.deletes.due.tolist())
        assert marked - due == set(scanned.dead.offsets().tolist()) - due, step

    def _clocks(self, records, now_ms):
        first = {}
        for offset, key, value in records:
            older = key in first
            first.setdefault(key, offset)
            if value is None and not older:
                self.free_ms.setdefault(offset, now_ms)

    def cut(self):
        """Drop all missing records after a truncation, which may have removed their newer records."""
        there = {offset for offset, _, _ in self.log.records()}
        for gone in [offset for offset in self.seen if offset not in there]:
            del self.seen[gone]
            self.free_ms.pop(gone, None)


def _round(model, rng, strategy):
    log = model.log
    if strategy == "kafka":
        clean(
            log.log,
            log.config,
            first_dirty=log.first_dirty,
            record_first_dirty=log.record,
            map_bytes=log.map_bytes,
        )
        log.ledger.fit(log.log.segments)
        return
    if rng.random() < model.whole_share:
        if model.by_hash and rng.random() < 0.5:  # without accounts a map of hashes makes them
            clocks = log.ledger.deletes.running()
            log.ledger.reset("the model forgot them")
            if rng.random() < 0.5:  # but not the clocks: tombstones are due at once
                log.ledger.deletes.saved_clocks = clocks
                log.clock.advance(2 * HOUR)
        with hashes_decide(model.by_hash):
            log.clean()
        model.check_accounts("all garbage")
        return
    run = None
    if log.ledger.entries:
        account = account_of(log.log, log.config, log.ledger, drive="d")
        columns = Columns.of(account, log.ledger.write_clock, 0.0)
        runs = list(all_garbage(account)) + best_runs(account, columns)
        if not model.whole_share:
            runs = [columns.run(account, n, n, 0.0) for n in columns.dead.nonzero()[0].tolist()]
        run = rng.choice(runs) if runs else None
    if run is None and not model.whole_share:
        log.garbage_bytes()
    else:
        log.clean(due=True, runs=[run])
    model.check_accounts(run)


def live(tmp_path, seed, steps=60, map_bytes=1 << 20, by_hash=False):
    rng = random.Random(seed)
    log = Log(tmp_path, CONFIG, map_bytes=map_bytes)
    model = Model(log)
    model.by_hash = by_hash
    keys = rng.choice([4, 12, 40])
    transactional = rng.random() < 0.5
    if rng.random() < 0.5:
        model.whole_share = 0.7 if by_hash else 0.0  # garbage stays for long
    deletes_from = rng.choice([0, steps // 4, steps // 2])  # the first tombstone may come after rewrites
    try:
        for number in range(steps):
            draw = rng.random()
            if draw < 0.45:
                for _ in range(rng.randrange(1, 25)):
                    key = b"k%02d" % rng.randrange(keys)
                    deletes = number >= deletes_from and rng.random() < 0.25
                    value = None if deletes else b"v%d" % rng.randrange(99999)
                    if not transactional or rng.random() < 0.6:
                        model.append(key, value)
                        continue
                    producer_id = rng.randrange(3)
                    if producer_id in model.open and rng.random() < 0.4:
                        model.end(producer_id, commit=rng.random() < 0.5)
                    else:
                        model.append_in_transaction(producer_id, key, value)
            elif draw < 0.75:
                _round(model, rng, "generational")
            elif draw < 0.80 and model.whole_share:
                _round(model, rng, "kafka")
            elif draw < 0.88:
                log.clock.advance(rng.choice([1, HOUR // 2, HOUR, 3 * HOUR]))
            elif draw < 0.97:
                how = rng.random()
                log.restart(save=how < 0.7)
                if how > 0.9 and (log.path / "lastword" / "accounts").exists():
                    (log.path / "lastword" / "accounts").unlink()
                    log.ledger = Ledger.open(DEFAULT, str(log.path), log.log.segments, map_bytes=map_bytes)
            elif draw < 0.985 and log.log.log_end > 5 and not transactional:  # a cut may open transactions
                offset = rng.randrange(log.log.log_end - 4, log.log.log_end)
                log.log.truncate_to(offset)
                model.cut()
                log.first_dirty = (
                    None if log.first_dirty is None else min(log.first_dirty, log.log.active.base_offset)
                )
            else:
                log.log.raise_log_start(min(log.log.log_start + rng.randrange(20), log.log.stable_offset))
                log.log.remove_prefix()
            model.check((seed, number, round(draw, 2)))
        for producer_id in list(model.open):
            model.end(producer_id, commit=True)
        log.clean()
        model.check((seed, "last but one"))
        log.clock.advance(2 * HOUR)
        log.clean()
        model.check((seed, "end"))
        log.clean()
        assert all(value is not None for offset, _, value in log.records() if offset < log.ledger.limit - 1)
    finally:
        log.close()
    assert log.clock.now_ms() > NOW


@pytest.mark.parametrize("seed", range(3))
def test_a_life(tmp_path, seed):
    live(tmp_path, seed, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(100, 118, stride(6)), 171, 185, 197, 211])
def test_lives(tmp_path, seed):
    live(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 340, stride(5)))
def test_lives_of_accounts_that_a_map_of_hashes_makes(tmp_path, seed):
    live(tmp_path, seed, steps=40, by_hash=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 204, stride(2)))
def test_lives_with_a_map_that_holds_a_few_keys(tmp_path, seed):
    live(tmp_path, seed, map_bytes=1024)
