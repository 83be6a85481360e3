"""Directories with batches whose checksum is right and whose fields contradict each other, by seed.

    python -m tests.crash.odd --cases 2000
    python -m tests.crash.odd --cases 2000 --kafka

A case has two or three segments. One batch, in any of them, has one or two fields out of its rule and a right
checksum; a fifth of the cases has a torn batch instead. The last stop was clean or not, and the recovery
point is below, inside or above the log. The judge:

    an odd batch     opening to write changes no log file
    a torn batch     opening changes the log files that `verify` announced (`Verification.cuts`), as announced
    beside Kafka     with --kafka, its own recovery opens a copy; it never leaves more bytes than ours
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from google_crc32c import value as crc32c

import lastword
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.records.record import encode_varint
from lastword.segment import names
from lastword.testing.unsynced import UnsyncedFiles
from tests.support.answering import AnsweringProcess
from tests.support.jars import HERE as LOGGING
from tests.support.jars import KafkaJars

NOW = 1_795_168_800_000
I32, I64 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """The fields of a batch of magic 2, in the order of its bytes."""

    base: int
    count: int
    epoch: int = 0
    magic: int = 2
    attributes: int = 0
    last: int = 0
    time: int = NOW
    max_time: int = NOW
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    payload: bytes | None = None

    def encoded(self) -> bytes:
        payload = self.payload
        if payload is None:
            payload = b"".join(_record(delta) for delta in range(self.last + 1))
        checked = struct.pack(
            ">hiqqqhii",
            self.attributes,
            self.last,
            self.time,
            self.max_time,
            self.producer,
            self.producer_epoch,
            self.sequence,
            self.count,
        )
        checked += payload
        rest = struct.pack(">ibI", self.epoch, self.magic, crc32c(checked)) + checked
        if self.magic < 0:  # the checksum of magic 0, at its place
            rest = struct.pack(">I", zlib.crc32(rest[4:])) + rest[4:]
        return struct.pack(">qi", self.base, len(rest)) + rest


def _record(delta: int) -> bytes:
    body = b"\0" + encode_varint(0) + encode_varint(delta) + encode_varint(1) + b"%d" % (delta % 10)
    body += encode_varint(1) + b"v" + encode_varint(0)
    return encode_varint(len(body)) + body


def _odd(rng: random.Random, batch: Batch, lowest: int, above: int) -> Batch:
    """Return the batch with one field out of its rule. Its segment begins with `lowest`, the next `above`."""
    payload = batch.encoded()[61:]
    last = batch.last
    field, values = rng.choice(
        (
            (
                "base",
                (
                    lowest - 2,
                    lowest - 1,
                    lowest,
                    above - 1,
                    0,
                    -1,
                    -I64 - 1,
                    above,
                    above + 5,
                    I64 - 1,
                    lowest + 2**31,
                ),
            ),
            ("epoch", (-1, -5, I32, 7)),
            ("magic", (3, 4, 127, -1, -128)),
            ("attributes", (5, 6, 7, 1, 4, 8, 0x10, 0x20, 0x30, 0x40, 0x80, 0x100, -1, -32768)),
            ("last", (-1, -I32 - 1, I32, 0, min(last + 1, I32), min(last + 9, I32))),
            ("time", (-1, -I64 - 1, I64, 0)),
            ("max_time", (-1, -I64 - 1, I64, 0)),
            ("producer", (-2, 0, 5, I64)),
            ("producer_epoch", (-2, 0, 32767)),
            ("sequence", (-2, 0, I32)),
            ("count", (-1, 0, 1, 100, I32, -I32 - 1)),
            ("payload", (b"", b"\0", payload + b"\0", payload[:-1], b"\xff" * 20, bytes(rng.randbytes(30)))),
        )
    )
    return replace(batch, **{"payload": payload, field: rng.choice(values)})


@dataclass(frozen=True)
class Case:
    """A directory as it is before the opening.

    `torn`: its damage is a torn batch, not an odd one. `indexed`: it has index files, which are empty.
    """

    logs: dict[int, bytes]
    recovery_point: int
    clean: bool
    torn: bool
    indexed: bool

    def write(self, root: Path) -> None:
        directory = root / "t-0"
        directory.mkdir(parents=True)
        for base, data in self.logs.items():
            (directory / names.segment_file(base, names.LOG)).write_bytes(data)
            for extension in (names.INDEX, names.TIME_INDEX) if self.indexed else ():
                (directory / names.segment_file(base, extension)).touch()
        (root / names.RECOVERY_POINTS).write_text(f"0\n1\nt 0 {self.recovery_point}\n")
        if self.clean:
            (root / names.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')


def case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    next_offset, segments = 0, []
    for _ in range(rng.randint(2, 3)):
        batches = []
        for _ in range(rng.randint(2, 4)):
            count = rng.randint(1, 3)
            batches.append(Batch(next_offset, count, last=count - 1))
            next_offset += count
        segments.append(batches)
    bases = [batches[0].base for batches in segments]
    place = rng.randrange(len(segments))
    row = rng.randrange(len(segments[place]))
    damaged = segments[place][row]
    torn = rng.random() < 0.2
    above = bases[place + 1] if place + 1 < len(bases) else next_offset
    if not torn:
        for _ in range(rng.randint(1, 2)):
            damaged = _odd(rng, damaged, bases[place], above)
    data = damaged.encoded()
    if torn:
        at = rng.randrange(12, len(data))
        data = rng.choice(
            (data[:at], data[:at] + bytes(len(data) - at), _flipped(data, rng.randrange(17, len(data))))
        )
    logs = {}
    for number, batches in enumerate(segments):
        parts = [
            data if (number, at) == (place, row) else batch.encoded() for at, batch in enumerate(batches)
        ]
        logs[bases[number]] = b"".join(parts)
    clean = rng.random() < 0.3
    recovery_point = next_offset if clean else rng.choice((0, 0, bases[place], above, next_offset))
    return Case(logs, recovery_point, clean, torn, rng.random() < 0.7)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]


def sizes(root: Path) -> dict[str, int]:
    """Return the size of every log file."""
    return {path.name: path.stat().st_size for path in (root / "t-0").glob("*.log")}


def judge(case: Case, root: Path) -> tuple[str, str]:
    """Write the directory, open it to write, and return what happened: a word, and the fault or "".

    The directory is left as the opening left it.
    """
    case.write(root)
    before = {path.name: path.read_bytes() for path in (root / "t-0").glob("*.log")}
    files, clock = UnsyncedFiles(), ManualClock(NOW)
    with lastword.open(root, files=files, clock=clock) as logs:
        cuts = {Path(cut.file).name: cut.left_bytes for cut in logs.verify().cuts}
    outcome = "kept"
    try:
        with lastword.open(root, "a", files=files, clock=clock, log_cleaner_enable=False) as logs:
            logs.topic("t").bounds()
    except LastwordError:
        outcome = "refused"
    after = {path.name: path.read_bytes() for path in (root / "t-0").glob("*.log")}
    expected = {name: data if name not in cuts else data[: cuts[name]] for name, data in before.items()}
    for name, left in cuts.items():
        if left is None:
            del expected[name]
    if after != expected:
        return outcome, f"verify announced {cuts}, and {_lengths(before)} became {_lengths(after)}"
    if cuts and not case.torn:
        return outcome, f"a batch with a right checksum was cut: {cuts}"
    return ("cut" if cuts else outcome), ""


def _lengths(logs: dict[str, bytes]) -> dict[str, int]:
    return {name: len(data) for name, data in logs.items()}


class KafkaRecovery:
    """Kafka's own recovery in a process that stays alive."""

    def __init__(self, jars: KafkaJars) -> None:
        from tests.differential.kafka_cleaner import SOURCES

        flags = (
            "-Xmx512m",
            f"-Dlog4j2.configurationFile={LOGGING / 'log4j2.xml'}",
            "-Dlastword.log=/dev/null",
        )
        self._process = AnsweringProcess(jars.command("RecoverMany", *flags, sources=SOURCES))

    def open(self, case: Case, root: Path) -> str:
        """Write and open the directory; return "ok" and the log end, or "error" and the text."""
        case.write(root)
        words = (root / "t-0", case.recovery_point, str(case.clean).lower())
        return "\t".join(self._process.ask("\t".join(map(str, words))))

    def close(self) -> None:
        self._process.close()


def compare(case: Case, root: Path, kafka: KafkaRecovery | None) -> tuple[str, str]:
    """Judge a case in `root`, which is removed afterwards, and beside Kafka if it is given."""
    try:
        outcome, fault = judge(case, root / "ours")
        if kafka is None:
            return outcome, fault
        answer = kafka.open(case, root / "kafka")
        before = sum(map(len, case.logs.values()))
        theirs, ours = sum(sizes(root / "kafka").values()), sum(sizes(root / "ours").values())
        word = answer.split("\t")[0].replace("ok", "kept") if theirs >= before else "cut"
        # After a clean stop Kafka reads no tail. It cuts a segment without an index, not those behind it.
        if ours < theirs and not (case.torn and (case.clean or not case.indexed)):
            fault = fault or f"Kafka left {theirs} of {before} bytes ({answer}), and we {ours}"
        return f"{'torn' if case.torn else 'odd'}: {outcome}, Kafka {word}", fault
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--kafka", action="store_true", help="open a copy of each directory with Kafka's recovery"
    )
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        kafka = KafkaRecovery(KafkaJars.find_or_fetch()) if options.kafka else None
        if kafka is not None:
            stack.callback(kafka.close)
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for seed in range(options.first, options.first + options.cases):
            try:
                outcome, fault = compare(case(seed), root / str(seed), kafka)
            except Exception as error:
                raise SystemExit(f"seed {seed}: {error!r}") from error
            counts[outcome] += 1
            if fault:
                raise SystemExit(f"seed {seed}: {outcome}: {fault}")
    print(f"{options.cases} directories: " + "; ".join(f"{n} {word}" for word, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
