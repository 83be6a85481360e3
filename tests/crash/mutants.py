"""Damage directories by seed, and call every verb of the Python API on them.

    python -m tests.crash.mutants --mutants 2000

copies a small directory, changes each copy by its seed (flipped bits, cut files, two files exchanged,
repeated batches, overlapping segments, files removed or replaced by noise), and calls every verb in both
modes. A verb must return a result or raise a LastwordError: no other exception, and no hang. The records of
the untouched partition must be right. A topic whose settings cannot be read keeps everything.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lastword
from lastword.clock import ManualClock
from lastword.config.settings import layer_of_topic
from lastword.errors import LastwordError
from lastword.records.batch import BatchBuilder
from lastword.records.formats import read_header
from lastword.testing.unsynced import UnsyncedFiles
from tests.transactions import end_transaction

NOW = 1_795_168_800_000
SETTINGS: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 150, "log_cleaner_enable": False}
SECONDS = 30
"""The time after which a verb counts as a hang."""
TOPICS = ("users", "plain", "other")
UNTOUCHED = "other"


def build(root: Path) -> None:
    """Make three topics: transactions, codecs and a named producer; headers; an untouched one."""
    clock = ManualClock(NOW)
    with lastword.open(root, "a", clock=clock, files=UnsyncedFiles(), **SETTINGS) as logs:
        for name in TOPICS:
            logs.create_topic(name, 1, cleanup_policy="compact")
            topic = logs.topic(name)
            for number in range(14):
                clock.advance(1000)
                value = b"value %d" % number + b"." * 30 if number % 6 else None
                topic.append(b"k%d" % (number % 4), value, headers={"h": b"%d" % number})
        users = logs.topic("users")
        users.extend([(b"n%d" % n, b"named") for n in range(3)], producer="loader", sequence=1)
        log = logs.dirs.log("users", 0)
        for producer_id, commit in ((7, True), (8, False)):
            builder = BatchBuilder(
                3, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
            )
            for number in range(3):
                builder.append(clock.now_ms(), b"t%d" % number, b"in a transaction")
            log.append_batch(builder.build(0))
            end_transaction(log, producer_id, 0, commit)
        users.lease("slow")
        logs.topic("plain").trim(3)
        logs.clean("users")
        for number in range(4):
            users.append(b"k%d" % number, b"after the cleaning")


def records(logs: lastword.LogDir, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in logs.topic(topic).read()]


# ---------------------------------------------------------------- changes


def _files(root: Path) -> list[Path]:
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.name != ".lock"]
    ours = (UNTOUCHED, f"lastword.topic-{UNTOUCHED}")
    return [p for p in files if not p.relative_to(root).parts[0].startswith(ours)]


def flip(root: Path, rng: random.Random) -> str:
    path = rng.choice([p for p in _files(root) if p.stat().st_size])
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"flip in {path.name}"


def cut(root: Path, rng: random.Random) -> str:
    path = rng.choice(_files(root))
    size = rng.randrange(path.stat().st_size + 1)
    path.write_bytes(path.read_bytes()[:size])
    return f"cut {path.name} at {size}"


def exchange(root: Path, rng: random.Random) -> str:
    first_file, second_file = rng.sample(_files(root), 2)
    first, second = first_file.read_bytes(), second_file.read_bytes()
    first_file.write_bytes(second)
    second_file.write_bytes(first)
    return f"exchange {first_file.name}, {second_file.name}"


def _batches(data: bytes) -> list[bytes]:
    batches, position = [], 0
    while position < len(data):
        size = read_header(data, position, len(data), "").size
        batches.append(data[position : position + size])
        position += size
    return batches


def _logs(root: Path) -> list[Path]:
    return [p for p in _files(root) if p.suffix == ".log" and p.stat().st_size]


def twice(root: Path, rng: random.Random) -> str:
    path = rng.choice(_logs(root))
    batches = _batches(path.read_bytes())
    at = rng.randrange(len(batches))
    batches.insert(rng.randrange(len(batches) + 1), batches[at])
    path.write_bytes(b"".join(batches))
    return f"batch {at} of {path.name} twice"


def missing(root: Path, rng: random.Random) -> str:
    path = rng.choice(_logs(root))
    batches = _batches(path.read_bytes())
    at = rng.randrange(len(batches))
    path.write_bytes(b"".join(batches[:at] + batches[at + 1 :]))
    return f"batch {at} of {path.name} missing"


def overlap(root: Path, rng: random.Random) -> str:
    path = rng.choice(_logs(root))
    base = int(path.stem) + rng.randrange(1, 6)
    for extension in rng.choice(((".log",), (".log", ".index", ".timeindex"))):
        shutil.copy(path.with_suffix(extension), path.with_name(f"{base:020d}{extension}"))
    return f"{path.name} again as {base}"


def gone(root: Path, rng: random.Random) -> str:
    path = rng.choice(_files(root))
    path.unlink()
    return f"{path.name} gone"


def noise(root: Path, rng: random.Random) -> str:
    path = rng.choice(_files(root))
    path.write_bytes(rng.randbytes(rng.choice((1, 30, 500))))
    return f"noise in {path.name}"


def settings(root: Path, rng: random.Random) -> str:
    path = root / f"lastword.topic-{rng.choice(TOPICS[:2])}.toml"
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(
        rng.choice((data[:at], data[:at] + rng.randbytes(1) + data[at + 1 :], rng.randbytes(at)))
    )
    return f"{path.name} changed at {at}"


CHANGES: tuple[Callable[[Path, random.Random], str], ...] = (
    *(flip, flip, flip, cut, cut, exchange, twice, missing, overlap, overlap, gone, noise, settings),
)


# ---------------------------------------------------------------- verbs


def _drain(records: Any) -> None:
    for _ in records:
        pass


def _verbs(logs: lastword.LogDir, scratch: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "topics", logs.topics
    yield "repr", lambda: logs._repr_html_()
    for name in TOPICS[:2]:
        topic = logs.topic(name)
        for view in ("log", "newest", "changes"):
            yield f"read {view}", lambda t=topic, v=view: _drain(t.read(view=v))
            yield f"arrow {view}", lambda t=topic, v=view: _drain(t.read(view=v).arrow())
        yield "read uncommitted", lambda t=topic: _drain(t.read(isolation="read_uncommitted"))
        yield "read from", lambda t=topic: _drain(t.read(start=5, end=9))
        yield "read keys", lambda t=topic: _drain(t.read(keys=[b"k1"]))
        yield "last sequence", lambda t=topic: t.last_sequence("loader")
        yield "describe", topic.describe
        yield "segments", topic.segments
        yield "state", lambda n=name: dict(logs.state(n))
        yield "explain", lambda n=name: logs.explain(n, key=b"k1")
        yield "duplication", lambda n=name: logs.duplication(n)
        yield "simulate", lambda n=name: logs.simulate(n)
        yield "restore", lambda n=name: logs.restore(n, to=scratch / f"{n}.jsonl")
        yield "audit", lambda n=name: logs.audit(n, delivered={b"k1": 3})
    yield "plan", logs.plan
    yield "verify", logs.verify
    yield "verify quick", lambda: logs.verify(quick=True)
    if logs.mode == "r":
        return
    for name in TOPICS[:2]:
        topic = logs.topic(name)
        yield "append", lambda t=topic: t.append(b"k1", b"appended")
        yield "named", lambda t=topic: t.append(b"k1", b"named", producer="loader", sequence=2)
        yield "lease", lambda t=topic: t.lease("other").release()
        yield "clean", lambda n=name: logs.clean(n)
        yield "clean kafka", lambda n=name: logs.clean(n, strategy="kafka")
        yield "expire", lambda n=name: logs.expire(n)
        yield "trim", lambda t=topic: t.trim(6)
        yield "read again", lambda t=topic: _drain(t.read())
    yield "sync", logs.sync


def _is_readable(root: str, topic: str) -> bool:
    file = Path(root, f"lastword.topic-{topic}.toml")
    try:
        layer_of_topic(file.read_text() if file.exists() else "", "")
    except (LastwordError, UnicodeDecodeError):
        return False
    return True


def removed_unread(logs: lastword.LogDir) -> Iterator[str]:
    """Yield topics whose settings cannot be read, and whose records a cleaning removes."""
    for name in (name for name in TOPICS[:2] if not _is_readable(logs.paths[0], name)):
        with contextlib.suppress(LastwordError):
            before = [(s.base_offset, s.size) for s in logs.dirs.log(name, 0).segments]
            for clean in (lambda n=name: logs.clean(n), lambda n=name: logs.expire(n)):
                with contextlib.suppress(LastwordError):
                    clean()
            if [(s.base_offset, s.size) for s in logs.dirs.log(name, 0).segments] != before:
                yield name


class Hang(Exception):
    """A verb exceeded its time limit."""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(template: Path, place: Path, seed: int) -> list[str]:
    """Return the errors in the results of the verbs on the mutant of this seed."""
    rng = random.Random(seed)
    root = place / "data"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template, root)
    with lastword.open(template) as logs:
        sound = records(logs, UNTOUCHED)
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(LastwordError, OSError, IndexError):  # files that an earlier change broke
            changes.append(rng.choice(CHANGES)(root, rng))
    label = f"seed {seed} ({'; '.join(changes)})"
    failures: list[str] = []

    def attempt(operation: str, call: Callable[[], Any]) -> Any:
        try:
            with _bounded():
                return call()
        except LastwordError as error:
            str(error)
            return error
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            failures.append(f"{label}: {operation}: {type(error).__name__}: {error}\n{where}")
            return error

    for mode in ("r", "a"):
        logs = attempt(
            f"open {mode}",
            lambda mode=mode: lastword.open(
                root, mode, clock=ManualClock(NOW + 10**6), files=UnsyncedFiles(), **SETTINGS
            ),
        )
        if not isinstance(logs, lastword.LogDir):
            continue
        try:
            for topic in removed_unread(logs) if mode == "a" else ():
                failures.append(f"{label}: its settings cannot be read, and records of {topic} are removed")
            verbs = _verbs(logs, place)
            while True:
                verb = attempt(f"{mode}: topic", lambda verbs=verbs: next(verbs, None))
                if not isinstance(verb, tuple):
                    break
                attempt(f"{mode}: {verb[0]}", verb[1])
            shown = attempt(f"{mode}: others", lambda logs=logs: records(logs, UNTOUCHED))
            if shown != sound:
                failures.append(f"{label}: {mode}: the untouched partition shows {shown}")
        finally:
            attempt(f"close {mode}", logs.close)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first mutant")
    given = parser.parse_args()
    started, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template"
        build(template)
        for seed in range(given.first, given.first + given.mutants):
            for problem in judge(template, Path(folder), seed):
                wrong += 1
                print(problem, flush=True)
    print(f"{given.mutants} mutants, {wrong} problems, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
