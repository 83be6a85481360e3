"""The inputs and results of resolving: segments, rules, and facts about each segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from lastword.errors import UnsupportedBatchError
from lastword.kernels import table as fields
from lastword.partition.transactions import Fate
from lastword.records.chunk import Chunk
from lastword.resolve.bitmaps import DeadBitmaps
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

LAST_HASH = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one resolution, apart from newer records of a key.

    Attributes:
        decided: An ongoing transaction is an error.
        drop_keyless: Records without a key are dead.
        now_ms: Tombstones below `due_below` whose delete horizon is at or before it are dead: reasons 3 to 5
            of `partition.leases`.
        due_below: See `now_ms`.
        keep_copies: Aborted records count as copies of their keys.
        last_hash: Only keys up to this hash are read.
    """

    decided: bool = False
    drop_keyless: bool = False
    now_ms: int = 0
    due_below: int = 0
    keep_copies: bool = False
    last_hash: int = LAST_HASH


class SegmentSource(Protocol):
    """One segment to resolve.

    `next_offset` is the offset after its last record, or the base offset of the next segment.
    """

    @property
    def base_offset(self) -> int:
        """Return the first offset that the segment may hold."""
        ...

    @property
    def next_offset(self) -> int:
        """Return the offset after the segment."""
        ...

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        ...

    @property
    def file(self) -> str:
        """Return the name of the file, for errors."""
        ...

    def chunk_reader(self, *, chunk_bytes: int = ..., verify: bool = ...) -> Iterator[Chunk]:
        """Return the chunks of the segment, in order."""
        ...


class TransactionOutcomes(Protocol):
    """The outcomes of transactions; `partition.transactions.Decisions` is one."""

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Return the `Fate` of each batch as uint8, from int64 columns of a chunk's table."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about one segment after resolving.

    Bytes are shares of the file: a record counts with a proportional part of its batch's header, so dead and
    live bytes add up to `size_bytes`. `records` excludes control records. `tombstones` are the live
    tombstones, `tombstones_without_horizon` those whose batch has no delete horizon yet, `due_tombstones`
    those that are dead because their horizon has passed. `keyless` are the records without a key,
    `aborted_records` those that are dead because their transaction was aborted. `live_digest` is the sum
    modulo 2^64 of the pair digests of all live records, except those of ongoing transactions.
    `last_of_producers` has (producer id, last offset of its last data batch here), for batches with a
    producer.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    records: int
    dead_records: int
    live_bytes: int
    dead_bytes: int
    live_digest: int
    tombstones: int
    tombstones_without_horizon: int
    due_tombstones: int
    keyless: int
    control_batches: int
    last_of_producers: tuple[tuple[int, int], ...] = ()
    aborted_records: int = 0

    @property
    def live_records(self) -> int:
        """Return the number of records that are not dead."""
        return self.records - self.dead_records


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result: facts for each segment, and the dead bitmaps.

    `distinct_keys` counts every key once, over all passes. `map_used_ratio` and `map_bytes_used` are peaks.
    """

    segments: tuple[SegmentFacts, ...]
    dead: DeadBitmaps
    passes: int
    distinct_keys: int
    map_bytes: int
    map_bytes_used: int
    map_used_ratio: float
    probes: int
    records: int
    keyless: int
    digest_seed: int
    seconds: float


class MapFull(Exception):
    """The keys do not fit the budget: the running resolution must not be used any more."""

    def __init__(self, keys: int, map_bytes: int) -> None:
        super().__init__(f"a map of {map_bytes} bytes is full with {keys} keys")
        self.keys = keys
        self.map_bytes = map_bytes


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Live tombstones, ascending by offset.

    `copies`: records of the key on disk, the tombstone included; 255 means 255 or more. `horizon_ms`: the
    delete horizon of the batch when it was read, -1 if it had none.
    """

    offset: NDArray[np.int64]
    copies: NDArray[np.uint8]
    size_bytes: NDArray[np.int64]
    horizon_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.offset.size)

    def since(self, offset: int) -> Tombstones:
        """Return the tombstones at this offset and above."""
        at = int(np.searchsorted(self.offset, offset))
        return Tombstones(self.offset[at:], self.copies[at:], self.size_bytes[at:], self.horizon_ms[at:])


def outcomes_of(
    chunk: Chunk, outcomes: TransactionOutcomes | None, *, decided: bool = False
) -> NDArray[np.uint8]:
    """Return the `Fate` of each batch of a chunk, uint8[rows]. The cleaner uses it, too.

    Raises UnsupportedBatchError for a transaction without `outcomes`, and with `decided` for an ongoing one.
    """
    attributes = chunk.table[:, fields.ATTRIBUTES]
    special = (attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
    if not special.any():
        return np.zeros(chunk.rows, np.uint8)
    if outcomes is None:
        data = (attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        if data.any():
            _refuse(chunk, int(data.argmax()), "a transactional batch, and its outcome was not looked up")
        return np.where(special, np.uint8(Fate.CONTROL), np.uint8(0))
    result = outcomes.fates(
        *(
            chunk.table[:, column]
            for column in (fields.ATTRIBUTES, fields.PRODUCER_ID, fields.BASE_OFFSET, fields.LAST_OFFSET)
        )
    )
    if decided and (result == Fate.UNDECIDED).any():
        _refuse(chunk, int((result == Fate.UNDECIDED).argmax()), "a transactional batch, still undecided")
    return result


def _refuse(chunk: Chunk, row: int, text: str) -> NoReturn:
    offset = int(chunk.table[row, fields.BASE_OFFSET])
    raise UnsupportedBatchError(
        f"offset {offset} is in {text}",
        code="transactional",
        remedy="end below the last stable offset, with the decisions of the transaction indexes",
        file=chunk.file,
        position=int(chunk.table[row, fields.FILE_POSITION]),
        offset=offset,
    )


def digest_seed_of(salt: bytes) -> int:
    """Return the seed of the digests that belong to a map of this salt."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(salt, digest_size=8, person=b"lastword seed").digest(), "little")


def check_order(sources: Sequence[SegmentSource], first_offset: int = 0) -> None:
    """Raise ValueError unless the base offsets ascend, from at least `first_offset` on."""
    before = first_offset - 1
    for source in sources:
        if source.base_offset <= before:
            raise ValueError("segments must have ascending base offsets")
        before = source.base_offset
