"""Find and repair damage in the segments of a log that is being opened.

`partition.open` has the rules: which segments are read with their checksums, and where a log may be cut.
"""

from __future__ import annotations

import os

from lastword.errors import CorruptBatchError
from lastword.files import Files
from lastword.partition.cut import forget_accounts
from lastword.partition.durability import RESTORE, LogEnd, wrong_end
from lastword.partition.recovery import Repairs, log_bases
from lastword.segment import names
from lastword.segment.recover import Inspection, inspect, is_bulk, repair
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles

SIDE_BY_SIDE_BYTES = 16 << 20
"""Segments that are as large as this on average are walked by several threads."""


class DamageRepair:
    """The damage of one partition: `find`, then `mend`.

    Attributes:
        walked: The number of segments of which every checksum was verified.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        repairs: Repairs,
        *,
        known: LogEnd,
        parts: set[int],
        index_interval_bytes: int,
    ) -> None:
        self.walked = 0
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._known = known
        self._parts = parts
        self._repairs = repairs

    def find(self) -> dict[int, Inspection]:
        """Verify the segments that need it, by base offset.

        Raises:
            CorruptBatchError: Damage that must not be cut.
        """
        bases = log_bases(self._files, self._directory)
        listing = set(self._files.listdir(self._directory))
        due: list[tuple[int, bool]] = []
        for at, base in enumerate(bases):
            last = at == len(bases) - 1
            above = last or bases[at + 1] > self._known.recovery_point
            no_index = any(
                names.segment_file(base, extension) not in listing
                for extension in (names.INDEX, names.TIME_INDEX)
            )
            if no_index or base in self._parts or (above and not self._known.clean):
                due.append((base, last))
        sound_end = None
        if bases and (not due or due[-1][0] != bases[-1]):
            sound_end = self._valid_end(bases[-1])
            if sound_end is None:
                due.append((bases[-1], True))
        self.walked += len(due)
        size = sum(self._log_bytes(base) for base, _ in due) if len(due) > 1 else 0
        inspections = self._walk_all(due, size)
        if not self._is_cut(inspections, bases):
            self._check_end(inspections, bases, sound_end)
        return inspections

    def _walk_all(self, due: list[tuple[int, bool]], size: int) -> dict[int, Inspection]:
        """Verify segments, large ones in parallel: the kernels and the reads release the interpreter's lock.

        With small segments the lock would cost more than the threads gain.
        """
        threads = min(len(due), os.cpu_count() or 1)
        if threads < 2 or size < len(due) * SIDE_BY_SIDE_BYTES or not is_bulk(size):
            return {base: self._walk(base, last, size) for base, last in due}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            inspections = list(pool.map(lambda item: self._walk(item[0], item[1], size), due))
        return {base: inspection for (base, _), inspection in zip(due, inspections, strict=True)}

    def _walk(self, base: int, active: bool, of_bytes: int = 0) -> Inspection:
        return inspect(
            self._files,
            self._directory,
            base,
            index_interval_bytes=self._index_interval_bytes,
            active=active,
            of_bytes=of_bytes,
            contiguous_from=self._known.contiguous_from if active else None,
        )

    def _valid_end(self, base: int) -> int | None:
        """Return the end of the active segment after a clean stop; None if it must be verified.

        It ends with a whole valid batch that its indexes cover.
        """
        from lastword.partition.directory_segments import end_of_valid_part

        segment = Segment.load(SegmentFiles(self._files, self._directory, base))
        indexes = segment.offset_index, segment.time_index
        if any(index.damaged or index.zero_tail_bytes for index in indexes):  # zeros: a stop cuts them
            return None
        last = segment.offset_index.last
        if last.position and segment.trusted_end() != last.position:
            return None
        position, next_offset = end_of_valid_part(segment)
        return next_offset if position == segment.size else None

    def _is_cut(self, inspections: dict[int, Inspection], bases: list[int]) -> bool:
        """Return whether the first damage is a torn tail. CorruptBatchError if it must not be cut."""
        for at, base in enumerate(bases):
            inspection = inspections.get(base)
            if inspection is None:
                continue
            if at + 1 < len(bases) and inspection.next_offset > bases[at + 1]:
                raise CorruptBatchError(
                    f"the segment goes up to offset {inspection.next_offset - 1}, the next one begins with "
                    f"{bases[at + 1]}",
                    code="offsets-fall",
                    remedy=RESTORE,
                    file=inspection.file,
                    position=inspection.size,
                    offset=bases[at + 1],
                )
            damage = inspection.damage
            if damage is None:
                continue
            later = [b for b in bases if b > base and (self._known.clean or self._log_bytes(b))]
            followed = inspection.followed is not None or bool(later)
            if self._known.is_torn_tail(damage.offset, followed=followed):
                return True
            if followed:
                where = inspection.followed if inspection.followed is not None else f"segment {later[0]}"
                why = f"offset {damage.offset} is missing, and sound batches follow at {where}"
            else:
                why = f"offset {damage.offset} was synced, so this is no torn tail"
            raise CorruptBatchError(
                f"{damage.text}; {why}",
                code=damage.code,
                remedy=RESTORE,
                file=inspection.file,
                position=damage.position,
                offset=damage.offset,
            )
        return False

    def _check_end(self, inspections: dict[int, Inspection], bases: list[int], sound_end: int | None) -> None:
        """Raise CorruptBatchError if a valid log has a wrong end, or a gap where there must be none."""
        if not bases:
            end, file, position = 0, self._directory, 0
        else:
            inspection = inspections.get(bases[-1])
            end = inspection.next_offset if inspection is not None else sound_end or bases[-1]
            segment = Segment.load(SegmentFiles(self._files, self._directory, bases[-1]))
            file, position = segment.file, segment.size
            if inspection is not None and inspection.gap is not None:
                raise CorruptBatchError(
                    f"offset {inspection.gap.offset} follows {inspection.gap.next_offset - 1}: no append "
                    "leaves a gap, so this batch has a wrong base offset",
                    code="offsets-fall",
                    remedy=RESTORE,
                    file=file,
                    position=inspection.gap.position,
                    offset=inspection.gap.next_offset,
                )
        expected = self._known.contradicts(end)
        if expected is None:
            return
        if end > expected:
            position = segment.position_of(expected)
        raise wrong_end(file, position, end, expected, clean=self._known.clean)

    def _log_bytes(self, base: int) -> int:
        facts = self._files.stat(os.path.join(self._directory, names.segment_file(base, names.LOG)))
        return 0 if facts is None else facts.size

    def mend(self, inspections: dict[int, Inspection]) -> None:
        """Repair the files by the result of `find`.

        Segments behind a cut are removed first, from the end, so that the log stays a prefix.
        """
        damaged = min(
            (base for base, inspection in inspections.items() if inspection.damage is not None), default=None
        )
        if damaged is not None:
            behind = [b for b in log_bases(self._files, self._directory) if b > damaged]
            if behind:  # closed segments are cut: what grows there may look like them
                forget_accounts(self._files, self._directory)
            for base in reversed(behind):
                self._remove_segment(base)
                self._files.fsync_dir(self._directory)  # or a power cut could keep a segment behind a hole
                inspections.pop(base, None)
            if behind:  # the damaged segment is the active one now
                inspections[damaged] = self._walk(damaged, active=True)
        for base, inspection in inspections.items():
            done = repair(self._files, inspection)
            if done.cut_bytes:
                assert inspection.damage is not None
                self._repairs.tell(
                    "torn-tail",
                    names.segment_file(base, names.LOG),
                    f"{done.cut_bytes} bytes cut: {inspection.damage.text}",
                    cut_bytes=done.cut_bytes,
                    offset=inspection.next_offset,
                )
            for path in done.rebuilt:
                self._repairs.tell("index", os.path.basename(path), "built again")

    def _remove_segment(self, base: int) -> None:
        path = os.path.join(self._directory, names.segment_file(base, names.LOG))
        facts = self._files.stat(path)
        for extension in names.SEGMENT_EXTENSIONS:
            self._files.unlink(
                os.path.join(self._directory, names.segment_file(base, extension)), missing_ok=True
            )
        size = facts.size if facts is not None else 0
        self._repairs.tell(
            "lost-segment", os.path.basename(path), "it was behind a torn tail", cut_bytes=size, offset=base
        )
