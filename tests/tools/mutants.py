"""Mutants of a small log directory that has every kind of file, each judged by `verify`.

A bit of one file is flipped, a file is cut, filled with zeros or removed. `verify` must then name the file,
or `lastword.open` must refuse and name it. Where `dump` reports damage of that file, too, both give it one
code (a log and staged batches have more than one check). `excused` lists what may stay unnamed, each kind
with its reason.
`python -m tests.tools.mutants --mutants 20000` runs as many as asked.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import lastword
from lastword.accounts.estimates import Survivorship
from lastword.cleaner.job_files import write_arrays, write_json
from lastword.cleaner.policy import quarantine
from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError, LastwordError
from lastword.files import DEFAULT
from lastword.ingest import staging
from lastword.keys import index
from lastword.logdir.copies import COPIED
from lastword.logdir.identity import MoveNote, write_move_note
from lastword.partition import cut, removal_log, staged_batches
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from lastword.segment.indexes import TXN_ENTRY
from lastword.tools.dump import dump
from lastword.tools.findings import Problem
from tests.transactions import end_transaction

NOW_MS = 1_795_168_800_000
SETTINGS = {"index_interval_bytes": 200, "segment_bytes": 1500, "log_cleaner_enable": False}


def build(root: Path) -> None:
    """Write a directory with every kind of file that a verb reads, closed cleanly."""
    import numpy as np

    with lastword.open(root, "a", clock=ManualClock(NOW_MS), **SETTINGS) as logs:
        topic = logs.create_topic("t", partitions=3, cleanup_policy="compact")
        for number in range(60):
            topic.append(b"key %d" % (number % 7), b"v" * 40, partition=number % 3)
        topic.append(b"named", b"v", partition=0, producer="loader", sequence=1)
        log = logs.dirs.log("t", 2)
        for decision in (True, False):
            builder = BatchBuilder(
                0, producer_id=7, producer_epoch=0, base_sequence=int(not decision), transactional=True
            )
            builder.append(NOW_MS, b"k", b"v" * 20)
            log.append_batch(builder.build())
            end_transaction(log, 7, 0, commit=decision)
        logs.clean("t", 0)
        for number in range(30):
            topic.append(b"key %d" % (number % 7), b"w" * 40, partition=0)
        topic.lease("replica", position=0)
        with patch.object(index, "OVERLAY_ENTRIES", 1):
            assert topic.get(b"key 1", partition=0) == b"w" * 40
    first, second = (root / f"t-{number}" for number in range(2))
    removal_log.note_dropped(DEFAULT, str(first), 3)
    cut.write_note(DEFAULT, str(first), 5, "retention.ms", NOW_MS)
    write_move_note(DEFAULT, str(second), MoveNote("elsewhere", 17))
    COPIED.save(DEFAULT, str(second / names.PRIVATE / names.COPIED), {"logs": {"a": [1, 2, 3, 4]}})
    quarantine.put(DEFAULT, str(second), CorruptBatchError("a batch", file="f", position=1, offset=2), NOW_MS)
    survivorship = Survivorship()
    survivorship.observe(1 << 20, 100, 40, 0.5)
    survivorship.save(DEFAULT, str(second / names.PRIVATE / names.SURVIVORSHIP))
    job = first / names.PRIVATE / "sharded-0011"
    job.mkdir()
    write_json(DEFAULT, str(job / "job.json"), {"plan": 1})
    write_arrays(DEFAULT, str(job / "unit-00000.npz"), {"stats": np.arange(5)})
    writer = staging.StagedWriter(DEFAULT, str(root), "t", 2, "load", 0, 0)
    builder = BatchBuilder(0)
    builder.append(NOW_MS, b"k", b"staged")
    writer.write(builder.build(0), 1)
    file = writer.close(sync=True)
    assert file is not None
    shared = staging.SharedWriter(DEFAULT, str(root), "load", 0, 0)
    for number in range(2):
        builder = BatchBuilder(0)
        builder.append(NOW_MS, b"k", b"shared")
        shared.write("t", number, builder.build(0), 1)
    runs = (*shared.close(sync=True), file)
    manifest = staging.CommitManifest("load", runs, sync=True, writer="w", sequence=4)
    staged_batches.LogEnds("earlier", {"t-0": 5, "t-2": 24}).save(DEFAULT, str(root))
    staging.mark_committed(DEFAULT, str(root), "earlier")
    (root / f"{names.INBOX}{NOW_MS:020d}-load").write_bytes(manifest.encoded())
    writers = staging.Writers({})
    writers.note("w", 3, NOW_MS)
    writers.save(DEFAULT, str(root))
    staging.REFUSED_FORM.save(DEFAULT, str(root / f"{names.REFUSED}{1:020d}-gone"), {"reason": "damaged"})
    assert not verify(root), verify(root)


CODES = frozenset(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", Problem.__doc__ or ""))


def verify(root: Path) -> dict[str, set[str]]:
    """Return the files that are named by problems, or by the error of the refused opening, with the codes."""
    paths = re.compile(re.escape(str(root)) + r"[^\s:,;']*")
    try:
        with lastword.open(root) as logs:
            problems = logs.verify().problems
        assert {problem.code for problem in problems} <= CODES
        named: dict[str, set[str]] = {}
        for problem in problems:
            named.setdefault(problem.file, set()).add(problem.code)
            for path in (problem.remove, *paths.findall(problem.text)):
                named.setdefault(path or problem.file, set())
        return named
    except LastwordError as error:
        return {path: set() for path in (str(error.file), *paths.findall(str(error)))}


def other_codes(path: Path, codes: set[str]) -> set[str]:
    """Return the codes of a damaged file that `dump` reports and `verify` does not, if both report damage."""
    if not codes or not path.exists() or path.suffix in (names.LOG, ".batches"):
        return set()
    return {entry.code for entry in dump(path) if isinstance(entry, Problem)} - codes


class Mutant(NamedTuple):
    path: Path
    kind: str  # flip, cut, zeros, gone
    before: bytes
    after: bytes | None


def mutants(root: Path, rng: random.Random) -> Iterator[Mutant]:
    """Yield mutants without end; the files take turns, so that small files get as many as large ones."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    while True:
        for path in paths:
            before = path.read_bytes()
            kind = rng.choice(("flip", "flip", "flip", "cut", "zeros", "gone")) if before else "gone"
            after: bytes | None = None
            if kind == "flip":
                changed = bytearray(before)
                changed[rng.randrange(len(before))] ^= 1 << rng.randrange(8)
                after = bytes(changed)
            elif kind == "cut":
                after = before[: rng.randrange(len(before))]
            elif kind == "zeros":
                start = rng.randrange(len(before))
                end = rng.choice((len(before), rng.randrange(start, len(before)) + 1))
                after = before[:start] + bytes(end - start) + before[end:]
            if after != before:
                yield Mutant(path, kind, before, after)


def excused(mutant: Mutant) -> str | None:
    """Return why this mutant may stay unnamed, or None."""
    name, after = mutant.path.name, mutant.after
    if name in (names.LOCK, names.CLEAN_SHUTDOWN) or name.startswith(
        (staging.COMMITTED, staging.OPEN, names.COMMITTED)
    ):
        return "only that the file is there counts; its absence is a valid state"
    parsed = names.parse_segment_file(name)
    if after is None:
        if parsed is not None and parsed.extension in (names.LOG, names.INDEX, names.TIME_INDEX):
            return None
        if name.endswith(".batches"):
            return "its commit was begun: a file that is gone is a segment, which taking in makes sure of"
        if mutant.path.parent.name.startswith("sharded-"):
            return "a step that was not done: it is done again"
        return "absence is a valid state of this file" if parsed is None or _is_optional(mutant) else None
    if name == names.SETTINGS:
        return "text of people: another text that is valid"
    if name.endswith("-checkpoint"):
        return "Kafka's text, without a checksum: another text that is possible"
    if name == names.META_PROPERTIES:
        return "Kafka's text, without a checksum: a comment, or another id"
    if name == names.SYNCED and not after.strip(b"\0"):
        return "zeros: what a power cut before the first sync leaves"
    if name == names.PRODUCERS and mutant.kind in ("cut", "zeros", "flip"):
        return None if b"\n" in mutant.before[_first_difference(mutant) :][:-1] else "a torn last line"
    if (
        parsed is not None
        and parsed.extension == names.INDEX
        and mutant.kind == "cut"
        and len(after) % 8 == 0
    ):
        return "fewer entries: an index is sparse, and reads walk from the entry before"
    if (
        parsed is not None
        and parsed.extension == names.TIME_INDEX
        and mutant.kind == "cut"
        and len(after) % 12 == 0
    ):
        return "fewer entries, as of an index"
    if mutant.path.suffix == ".npz" and _arrays(mutant.before) == _arrays(after):
        return "the same arrays: a field of the zip file that is not used"
    if mutant.kind == "flip" and (mutant.path.suffix == ".batches" or name.startswith(names.STAGED)):
        given = _first_difference(mutant) < 8 or 12 <= _first_difference(mutant) < 16
        return "base offset and leader epoch are given when the batch is taken in" if given else None
    if parsed is None:
        return None
    place = _first_difference(mutant)
    in_offset = parsed.extension == names.TIME_INDEX and place % 12 >= 8 and mutant.kind == "flip"
    if in_offset and _last_offset(mutant) >= _flipped_offset(mutant):
        return "another offset up to which the timestamp is the largest: all records here have one time"
    in_stable_offset = parsed.extension == names.TXN_INDEX and place % TXN_ENTRY.size >= 26
    if in_stable_offset and mutant.kind == "flip" and after < mutant.before:
        return "a lower last stable offset: a reader looks at more entries"
    rest = after[place // _entry(parsed) * _entry(parsed) :]
    if parsed.extension in (names.INDEX, names.TIME_INDEX) and not rest.strip(b"\0"):
        return "zeros at the end of an index: room that is reserved"
    return None


def _arrays(data: bytes | None) -> list[tuple[str, str]]:
    import numpy as np

    try:
        with np.load(io.BytesIO(data or b""), allow_pickle=False) as arrays:
            return [(name, repr(arrays[name])) for name in arrays.files]
    except Exception:
        return []


def _flipped_offset(mutant: Mutant) -> int:
    place = _first_difference(mutant) // 12 * 12 + 8
    return int.from_bytes((mutant.after or b"")[place : place + 4], "big")


def _last_offset(mutant: Mutant) -> int:
    """Return the last offset of the mutant's segment, relative to its base offset."""
    log = mutant.path.with_suffix(names.LOG)
    base = int(log.stem)
    with lastword.open(log.parent.parent) as logs:
        segments = logs.dirs.view("t", int(log.parent.name[2:])).segments
        return next(segment.next_offset for segment in segments if segment.base_offset == base) - 1 - base


def _entry(parsed: names.SegmentFile) -> int:
    return 8 if parsed.extension == names.INDEX else 12


def _is_optional(mutant: Mutant) -> bool:
    parsed = names.parse_segment_file(mutant.path.name)
    return parsed is not None and (parsed.extension == names.SNAPSHOT or not mutant.before)


def _first_difference(mutant: Mutant) -> int:
    after = mutant.after or b""
    same = (place for place, (a, b) in enumerate(zip(mutant.before, after, strict=False)) if a != b)
    return next(same, min(len(mutant.before), len(after)))


def run(count: int, seed: int, directory: Path) -> tuple[Counter[str], list[Mutant]]:
    """Judge `count` mutants; return the counts of named and excused ones by reason, and the others.

    One with two codes is among the others, too.
    """
    root = directory / "data"
    build(root)
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    missed: list[Mutant] = []
    source = mutants(root, rng)
    for _ in range(count):
        mutant = next(source)
        facts = mutant.path.stat()
        if mutant.after is None:
            mutant.path.unlink()
        else:
            mutant.path.write_bytes(mutant.after)
        named = verify(root)
        unlike = other_codes(mutant.path, named.get(str(mutant.path), set()))
        mutant.path.write_bytes(mutant.before)
        mutant.path.chmod(facts.st_mode)
        reason = excused(mutant)
        if unlike:
            missed.append(mutant)
        elif _is_named(mutant, named):
            counts["named"] += 1
        elif reason is not None:
            counts[reason] += 1
        else:
            missed.append(mutant)
    return counts, missed


def _is_named(mutant: Mutant, named: dict[str, set[str]]) -> bool:
    """Return whether the file is named; a small file of a segment may be named by the segment's log."""
    own = str(mutant.path)
    stem = own.partition(".")[0] if names.parse_segment_file(mutant.path.name) else own
    return any(name == own or (stem != own and name.startswith(stem)) for name in named) or (
        mutant.path.suffix == ".batches" and str(mutant.path.parent) in named
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        counts, missed = run(chosen.mutants, chosen.seed, directory)
    finally:
        shutil.rmtree(directory)
    for reason, count in counts.most_common():
        print(f"{count:7d}  {reason}")
    kinds = Counter(
        (mutant.path.relative_to(directory / "data").as_posix(), mutant.kind) for mutant in missed
    )
    for (path, kind), count in kinds.most_common():
        example = next(m for m in missed if m.path.name == Path(path).name and m.kind == kind)
        place, after = _first_difference(example), (example.after or b"")[:80]
        print(f"MISSED {count} {path} {kind} first at {place}: {after!r}")
    print(f"{chosen.mutants} mutants, {len(missed)} missed")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
