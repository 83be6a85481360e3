"""Batches that grow when they are decompressed, in every codec and magic, read by every verb.

A child process reads a log with one such batch by each verb. It reports each verb's error and the largest
growth of its resident memory (`VmHWM`), because decompressors allocate outside Python's allocator.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.cli.main import run
from lastword.errors import DecompressionLimitError
from lastword.records.batch import BatchBuilder
from lastword.records.compression import CODEC_NAMES
from lastword.records.record import CREATE_TIME, NO_TIMESTAMP_TYPE, RawRecord
from lastword.wire import GZIP, LZ4, SNAPPY, ZSTD
from tests.support.exhaustive import stride
from tests.support.legacy import build_wrapper

MIB = 1 << 20
LIMIT = 16 * MIB
LARGE = 64 * MIB
T = 1_700_000_000_000
KIND = (2, GZIP)
OTHERS = [
    (2, SNAPPY),
    (2, LZ4),
    (2, ZSTD),
    *((magic, codec) for magic in (1, 0) for codec in (GZIP, SNAPPY, LZ4)),
]


def batch(magic: int, codec: int, offset: int, value: bytes) -> bytes:
    if magic == 2:
        builder = BatchBuilder(codec)
        builder.append(T, b"k%d" % offset, value)
        return builder.build(offset)
    stamp, kind = (T, CREATE_TIME) if magic else (-1, NO_TIMESTAMP_TYPE)
    return build_wrapper(magic, codec, [RawRecord(offset, stamp, kind, b"k%d" % offset, value, ())])


def write_log(root: Path, magic: int, codec: int, large: int) -> None:
    """Write a closed segment of two batches, the second with a value of `large` zeros, and a next segment."""
    with lastword.open(root, "a") as logs:
        logs.create_topic("t", cleanup_policy="compact")
    directory = root / "t-0"
    for file in [*directory.glob("0*"), root / ".kafka_cleanshutdown"]:
        file.unlink()
    first = batch(magic, codec, 0, b"x") + batch(magic, codec, 1, bytes(large))
    (directory / f"{0:020}.log").write_bytes(first)
    (directory / f"{2:020}.log").write_bytes(batch(magic, codec, 2, b"x") + batch(magic, codec, 3, b"y"))


def _dump(root: str) -> None:
    from lastword.tools.dump import dump
    from lastword.tools.findings import Problem

    for entry in dump(f"{root}/t-0/{0:020}.log"):
        if isinstance(entry, Problem):
            raise DecompressionLimitError(entry.text, remedy=entry.remedy)


def _verify(root: str) -> None:
    with lastword.open(root) as logs:
        for problem in logs.verify().problems:
            if "index" not in problem.code:
                raise DecompressionLimitError(problem.text, remedy=problem.remedy)


def _reading(use: Callable[[Any], Any]) -> Callable[[str], None]:
    def verb(root: str) -> None:
        with lastword.open(root) as logs:
            use(logs)

    return verb


def _clean(root: str) -> None:
    with lastword.open(root, "a", log_cleaner_enable=False, log_cleaner_dedupe_buffer_size="4MiB") as logs:
        logs.clean("t")


VERBS: dict[str, Callable[[str], None]] = {
    "dump": _dump,
    "verify": _verify,
    "read": _reading(lambda logs: sum(1 for _ in logs.topic("t").read())),
    "newest": _reading(lambda logs: sum(1 for _ in logs.topic("t").read(view="newest"))),
    "arrow": _reading(lambda logs: logs.topic("t").read().arrow().read_all()),
    "state": _reading(lambda logs: len(logs.state("t", key_serializer="bytes", value_serializer="bytes"))),
    "restore": _reading(lambda logs: logs.restore("t", to=f"{logs.paths[0]}.parquet")),
    "duplication": _reading(lambda logs: logs.duplication("t")),
    "explain": _reading(lambda logs: logs.explain("t", key=b"k3")),
    "clean": _clean,
}


def resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def run_verbs(root: str) -> dict[str, tuple[int, str]]:
    """Return, for each verb, the bytes added to the resident memory at its peak, and its error."""
    results = {}
    for name, verb in VERBS.items():
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before, text = resident_bytes("VmRSS"), ""
        try:
            verb(root)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        results[name] = (resident_bytes("VmHWM") - before, text)
    return results


def child(small: str, large: str) -> None:
    run_verbs(small)
    print(json.dumps(run_verbs(large)))


def measured(
    tmp_path: Path, magic: int, codec: int, limit: str, bytes_of_large: int = LARGE
) -> dict[str, tuple[int, str]]:
    for name, large in (("small", 10), ("large", bytes_of_large)):
        write_log(tmp_path / name, magic, codec, large)
        settings = tmp_path / name / "lastword.toml"
        settings.write_text(f'lastword.decompression.max.bytes = "{limit}"\n{settings.read_text()}')
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=True,
    )
    results: dict[str, tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize(
    ("magic", "codec"),
    [KIND, *(pytest.param(*kind, marks=pytest.mark.slow) for kind in OTHERS[stride(10) - 1 :])],
)
def test_no_verb_takes_more_memory_than_the_bound_says(tmp_path: Path, magic: int, codec: int) -> None:
    for name, (grown, text) in measured(tmp_path, magic, codec, f"{LIMIT // MIB}MiB").items():
        assert grown < 3 * LIMIT, name
        assert "grows past 16 MiB" in text, (name, text)
        assert "--set lastword.decompression.max.bytes=" in text, (name, text)
        assert f"{0:020}.log position" in text, (name, text)
        assert "offset 1: " in text, (name, text)
        assert CODEC_NAMES[codec] in text, (name, text)


@pytest.mark.slow
@pytest.mark.parametrize(("magic", "codec"), [(1, LZ4), (2, ZSTD), (2, GZIP)][:: stride(3)])
def test_a_large_batch_is_read_when_the_bound_is_raised(tmp_path: Path, magic: int, codec: int) -> None:
    results = measured(tmp_path, magic, codec, "64MiB", LARGE // 2)
    assert {name: text for name, (_, text) in results.items()} == dict.fromkeys(VERBS, "")


def test_a_bound_of_one_directory_is_not_that_of_another(tmp_path: Path) -> None:
    for name, limit in (("a", 1 << 16), ("b", 1 << 20)):
        write_log(tmp_path / name, 2, ZSTD, 100_000)
        with lastword.open(tmp_path / name, lastword_decompression_max_bytes=limit):
            pass
    with lastword.open(tmp_path / "b", lastword_decompression_max_bytes=1 << 20) as logs:
        assert len(list(logs.topic("t").read())) == 4
        with (
            lastword.open(tmp_path / "a", lastword_decompression_max_bytes=1 << 16) as other,
            pytest.raises(DecompressionLimitError),
        ):
            list(other.topic("t").read())
        assert len(list(logs.topic("t").read())) == 4


def test_the_remedy_works(tmp_path: Path) -> None:
    write_log(tmp_path / "a", 2, ZSTD, 100_000)
    settings = tmp_path / "a" / "lastword.toml"
    settings.write_text(f'lastword.decompression.max.bytes = "64KiB"\n{settings.read_text()}')
    with lastword.open(tmp_path / "a") as logs, pytest.raises(DecompressionLimitError) as caught:
        list(logs.topic("t").read())
    command = str(caught.value.remedy).split("`")[1].split()
    assert command[0] == "lastword"
    assert run(command[1:]) == 0
    with lastword.open(tmp_path / "a") as logs:
        assert len(list(logs.topic("t").read())) == 4


if __name__ == "__main__":
    child(*sys.argv[1:])
