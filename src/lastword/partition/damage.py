"""Damage in the segments of a log that is being opened: which of them are walked to find it, where it may be
cut, and the cut. `partition.open` has the rules.
"""

from __future__ import annotations

import os

from lastword.errors import CorruptBatchError
from lastword.files import Files
from lastword.partition.leftovers import log_bases
from lastword.partition.recovery import Repairs
from lastword.partition.synced import read_synced
from lastword.partition.truncate import forget_accounts
from lastword.segment import names
from lastword.segment.recover import Inspection, inspect, is_bulk, repair
from lastword.segment.segment import Segment

SIDE_BY_SIDE_BYTES = 16 << 20
"""Segments that are as large as this on average are walked by several threads."""


class Damage:
    """Of one partition: `find` it, then `mend` it.

    recovery_point  everything below was on the drive with its indexes, as the checkpoint says
    clean           the last holder stopped cleanly
    parts           base offsets of segments that were split just now: they have no indexes yet
    walked          how many segments had every checksum verified
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        repairs: Repairs,
        *,
        recovery_point: int,
        clean: bool,
        parts: set[int],
        index_interval_bytes: int,
    ) -> None:
        self.walked = 0
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._recovery_point = recovery_point
        self._clean = clean
        self._parts = parts
        self._repairs = repairs

    def find(self) -> dict[int, Inspection]:
        """Walk what must be walked, by base offset. CorruptBatchError for damage that must not be cut."""
        bases = log_bases(self._files, self._directory)
        listing = set(self._files.listdir(self._directory))
        due: list[tuple[int, bool]] = []
        for at, base in enumerate(bases):
            last = at == len(bases) - 1
            above = last or bases[at + 1] > self._recovery_point
            no_index = any(
                names.segment_file(base, extension) not in listing
                for extension in (names.INDEX, names.TIME_INDEX)
            )
            if (
                no_index
                or base in self._parts
                or (above and not self._clean)
                or (last and not self._ends_soundly(base))
            ):
                due.append((base, last))
        self.walked += len(due)
        size = sum(self._log_bytes(base) for base, _ in due) if len(due) > 1 else 0
        found = self._walk_all(due, size)
        self._judge(found, bases)
        return found

    def _walk_all(self, due: list[tuple[int, bool]], size: int) -> dict[int, Inspection]:
        """Large files side by side: the kernels and the reads hold no lock of the interpreter. With small
        ones threads would only wait for each other.
        """
        threads = min(len(due), os.cpu_count() or 1)
        if threads < 2 or size < len(due) * SIDE_BY_SIDE_BYTES or not is_bulk(size):
            return {base: self._walk(base, last, size) for base, last in due}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            each = list(pool.map(lambda one: self._walk(one[0], one[1], size), due))
        return {base: found for (base, _), found in zip(due, each, strict=True)}

    def _walk(self, base: int, active: bool, of_bytes: int = 0) -> Inspection:
        return inspect(
            self._files,
            self._directory,
            base,
            index_interval_bytes=self._index_interval_bytes,
            active=active,
            of_bytes=of_bytes,
        )

    def _ends_soundly(self, base: int) -> bool:
        """After a clean stop: does the active segment end with a whole sound batch that its indexes agree
        with?
        """
        from lastword.partition.view import end_of_sound_part

        segment = Segment.load(self._files, self._directory, base)
        indexes = segment.offset_index, segment.time_index
        if any(index.damaged or index.zero_tail_bytes for index in indexes):  # zeros: a stop cuts them
            return False
        last = segment.offset_index.last
        if last.position and segment.trusted_end() != last.position:
            return False
        return end_of_sound_part(segment)[0] == segment.size

    def _judge(self, found: dict[int, Inspection], bases: list[int]) -> None:
        """The first damage ends the log, or the opening. It must not end the log below what was synced while
        sound batches follow.
        """
        synced = max(self._recovery_point, read_synced(self._files, self._directory))
        for base in bases:
            one = found.get(base)
            if one is None or one.damage is None:
                continue
            later = [b for b in bases if b > base and self._log_bytes(b)]
            followed = one.followed is not None or bool(later)
            if followed and (self._clean or one.damage.offset < synced):
                where = one.followed if one.followed is not None else f"segment {later[0]}"
                raise CorruptBatchError(
                    f"{one.damage.text}; offset {one.damage.offset} is missing, "
                    f"and sound batches follow at {where}",
                    code=one.damage.code,
                    remedy="restore the file from a copy; `lastword verify` lists all damage",
                    file=one.file,
                    position=one.damage.position,
                    offset=one.damage.offset,
                )
            return

    def _log_bytes(self, base: int) -> int:
        facts = self._files.stat(os.path.join(self._directory, names.segment_file(base, names.LOG)))
        return 0 if facts is None else facts.size

    def mend(self, found: dict[int, Inspection]) -> None:
        """Make the files what the walk found. Segments behind a cut go first, from the end: the log stays
        whole.
        """
        damaged = min((base for base, one in found.items() if one.damage is not None), default=None)
        if damaged is not None:
            behind = [b for b in log_bases(self._files, self._directory) if b > damaged]
            if behind:  # closed segments are cut: what grows there may look like them
                forget_accounts(self._files, self._directory)
            for base in reversed(behind):
                self._remove_segment(base)
                self._files.fsync_dir(self._directory)  # or a power cut could keep a segment behind a hole
                found.pop(base, None)
            if behind:  # it is the active one now, whose time index goes on
                found[damaged] = self._walk(damaged, active=True)
        for base, one in found.items():
            done = repair(self._files, one)
            if done.cut_bytes:
                assert one.damage is not None
                self._repairs.tell(
                    "torn-tail",
                    names.segment_file(base, names.LOG),
                    f"{done.cut_bytes} bytes cut: {one.damage.text}",
                    cut_bytes=done.cut_bytes,
                    offset=one.next_offset,
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
            "lost-segment", os.path.basename(path), "lay behind a torn tail", cut_bytes=size, offset=base
        )
