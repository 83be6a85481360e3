"""Walk all batches of a file, damaged ones included: damage is reported, and the walk continues after it.

`segment.scan.SoundWalk`, which recovery uses, stops at the first damage. This walk does not: after a bad
checksum it continues at the position that the length gives; after a bad length it searches the next valid
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lastword.errors import DataError
from lastword.files import Handle
from lastword.records.batch import BatchHeader
from lastword.records.formats import crc_ok, read_header
from lastword.segment.scan import Damage, sound_batch_after
from lastword.tools.findings import Problem
from lastword.wire import OVERHEAD_BYTES, SMALLEST_LENGTH, STEP_BYTES

_BLOCK_BYTES = 1 << 20

Report = Callable[[Problem], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A batch: its header with its position in the file, its bytes, and whether its checksum is right."""

    header: BatchHeader
    data: bytes
    sound: bool


class LenientWalk:
    """Iterates over the batches in the bytes [start, end) of `handle`, and reports damage to `report`.

    `is_last`: the segment is the last of its log, so recovery would cut a torn tail. After the walk,
    `read_bytes` is the number of bytes read, and `tail` the position of an incomplete last batch, or None.
    """

    def __init__(
        self,
        handle: Handle,
        file: str,
        start: int,
        end: int,
        base_offset: int,
        report: Report,
        *,
        is_last: bool = True,
    ) -> None:
        self._handle = handle
        self._file = file
        self._end = end
        self._base_offset = base_offset
        self._report = report
        self._is_last = is_last
        self._next_offset = base_offset
        self.position = start
        self.read_bytes = 0
        self.tail: int | None = None

    def __iter__(self) -> Iterator[Step]:
        block, block_start = b"", self.position
        while self.position < self._end:
            block_position = self.position - block_start
            bytes_left = self._end - self.position
            need = STEP_BYTES
            if len(block) - block_position >= STEP_BYTES:
                length = int.from_bytes(block[block_position + 8 : block_position + 12], "big", signed=True)
                if length < SMALLEST_LENGTH or length > bytes_left - OVERHEAD_BYTES:
                    if not self._skip(length, bytes_left):
                        return
                    block, block_start = b"", self.position
                    continue
                need = length + OVERHEAD_BYTES
            if need > bytes_left:
                if not self._skip(-1, bytes_left):
                    return
                block, block_start = b"", self.position
                continue
            if len(block) - block_position < need:
                block = self._handle.pread(min(max(_BLOCK_BYTES, need), bytes_left), self.position)
                block_start = self.position
                self.read_bytes += len(block)
                if len(block) < need:
                    self._problem("incomplete-batch", "the file became shorter while it was read", True)
                    return
                continue
            step = self._step(block[block_position : block_position + need])
            self.position += need
            if step is not None:
                self._next_offset = step.header.next_offset
                yield step

    def _step(self, data: bytes) -> Step | None:
        try:
            header = read_header(data, 0, len(data), self._file, file_position=self.position)
        except DataError as error:
            self._problem(error.code, error.message, False, int.from_bytes(data[:8], "big", signed=True))
            return None
        sound = crc_ok(data, header, 0)
        if not sound:
            self._problem(
                "bad-crc",
                f"the checksum of the batch at offset {header.base_offset} is wrong",
                False,
                header.base_offset,
            )
        return Step(header, data, sound)

    def _skip(self, length: int, bytes_left: int) -> bool:
        """Report invalid bytes at the position and move after them. False if no valid batch follows."""
        damage = Damage(self.position, self._next_offset, "bad-length", "")
        next_position = sound_batch_after(self._handle, self._file, damage, self._end, self._base_offset)
        if next_position is None:
            self.tail = self.position
            self._problem(
                "incomplete-batch", f"the last {bytes_left} bytes are no whole batch", self._is_last
            )
            return False
        self._problem(
            "bad-length",
            f"length {length} makes no sense; {next_position - self.position} bytes passed over",
            False,
            self._next_offset,
        )
        self.position = next_position
        return True

    def _problem(self, code: str, text: str, repairable: bool, offset: int | None = None) -> None:
        self._report(Problem(self._file, self.position, offset, code, text, repairable))
