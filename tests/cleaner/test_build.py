"""A round with two threads: the same bytes as with one thread, and no file is left if it ends early."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastword.cleaner.engine import build
from lastword.cleaner.engine.build import built_in_order, threads_for
from lastword.cleaner.engine.throttle import Stopped
from lastword.errors import CorruptBatchError, DataError
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.pipeline import second_thread
from tests.build import LogBuilder
from tests.fakes.hasty import HastyFiles


def written(root: Path, *, deletes: bool = False) -> LogBuilder:
    """Write twelve segments with garbage in each; they make several groups."""
    log = LogBuilder(root, files=HastyFiles()).topic("users", segment_bytes=1200)
    for number in range(12):
        log.batch([(f"k{n % 7}" if n % 3 else f"only{number}-{n}", f"{number}.{n}") for n in range(30)])
        if deletes and number % 2:
            log.delete(f"only{number - 1}-0")
        log.roll()
    return log


def logs_of(log: LogBuilder) -> dict[str, bytes]:
    return {name: data for name, data in log.tree().items() if name.endswith((".log", "index"))}


def helpers() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("lastword-rewrite", "lastword-resolve"))
    ]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logs of every size use two threads."""
    monkeypatch.setattr(build, "LARGE_BYTES", 0)


def test_a_small_log_is_not_worth_a_second_thread() -> None:
    assert [threads_for(size, 8) for size in (0, build.LARGE_BYTES - 1, build.LARGE_BYTES)] == [1, 1, 2]
    assert threads_for(1 << 40, 1) == 1


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_the_same_bytes_as_by_one(strategy: str, deletes: bool, tmp_path: Path, large: None) -> None:
    """Also if the map needs the dropped records in order: then groups are rewritten one after the other."""
    logs, rounds = [], []
    for threads in (1, 2):
        log = written(tmp_path / str(threads), deletes=deletes)
        before = log.state()
        rounds.append(log.clean(strategy=strategy, threads=threads))
        assert log.state() == before
        logs.append(logs_of(log))
        log.close()
    assert rounds[0].segments_after > 2 and rounds[0].records_kept < rounds[0].records_read
    assert logs[0] == logs[1] and helpers() == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_stopped_at_any_step_nothing_is_left(strategy: str, tmp_path: Path, large: None) -> None:
    for number in itertools.count():
        log = written(tmp_path / str(number))
        before, asked = log.state(), itertools.count()
        done = log.clean(strategy=strategy, threads=2, stop=lambda a=asked, n=number: next(a) >= n)
        assert log.state() == before
        assert helpers() == [] and not [name for name in log.tree() if "rewrite-" in name]
        complete = done.complete
        log.close()
        if complete:
            break
    assert number > 10


def test_damage_in_one_group_ends_the_others(tmp_path: Path, large: None) -> None:
    """The damage is found when the second group is read again, after the map pass; the first is swapped."""
    log = written(tmp_path)
    victim = Path(log.directory) / f"{log.log.segments[8].base_offset:020d}.log"

    def spoil(progress: Any) -> None:
        if 2 * progress.done_bytes >= progress.total_bytes:
            data = bytearray(victim.read_bytes())
            if data[70] != 0xFF:
                data[70] = 0xFF
                with victim.open("r+b") as file:
                    file.write(data)

    with pytest.raises(DataError) as error:
        log.clean(threads=2, progress=spoil)
    assert isinstance(error.value, CorruptBatchError)
    assert helpers() == [] and not [name for name in log.tree() if "rewrite-" in name]
    assert (Path(log.directory) / "lastword" / "quarantine").exists()


def test_the_other_thread_made_the_private_directory(tmp_path: Path) -> None:
    class Late(HastyFiles):
        """Files in which another thread always creates the directory first."""

        def mkdir(self, path: Any) -> None:
            if str(path).endswith("lastword"):
                super().mkdir(path)
            super().mkdir(path)

    location = DirectorySegments(Late(), str(tmp_path)).create_output(5).location
    assert Path(location).is_dir() and Path(location).parent == tmp_path / "lastword"


class Building:
    """A fake: a group is a name, a written group is that name, a complete group is a list of the name."""

    def __init__(self) -> None:
        self.thrown: list[Any] = []
        self.given_up = threading.Event()

    def write(self, group: Any, second: Any) -> Any:
        if group == "bad":
            raise CorruptBatchError("damaged", file="f")
        return group

    def complete(self, written: Any) -> Any:
        if written == "slow":
            assert self.given_up.wait(10)
            raise Stopped
        if written == "wrong":
            raise CorruptBatchError("not what it should be", file="f")
        return [written]

    def discard(self, unwanted: Any) -> None:
        self.thrown.append(unwanted)

    def give_up(self) -> None:
        self.given_up.set()


def built(building: Building, groups: Any, *, overlap: bool = True) -> Iterator[Any]:
    with second_thread("lastword-rewrite", 2) as second:
        yield from built_in_order(building, groups, second, overlap=overlap)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("groups", [[], ["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_every_group_in_order(groups: list[str], overlap: bool) -> None:
    building = Building()
    assert list(built(building, groups, overlap=overlap)) == [[group] for group in groups]
    assert building.thrown == [] and helpers() == []


@pytest.mark.parametrize("bad", ["bad", "wrong"])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_comes_after_the_groups_before_it(bad: str, overlap: bool) -> None:
    building, taken = Building(), []
    with pytest.raises(CorruptBatchError):
        for result in built(building, ["a", "b", bad, "d", "e"], overlap=overlap):
            taken.append(result)
    assert taken == [["a"], ["b"]] and helpers() == []
    assert building.thrown == (["d"] if bad == "wrong" and overlap else [])


def test_what_was_built_and_not_taken_is_thrown_away() -> None:
    building = Building()
    each = built(building, ["a", "b", "c", "d"])
    assert next(each) == ["a"] and building.thrown == []
    each.close()  # type: ignore[attr-defined]
    assert building.thrown == ["b"] and helpers() == []


def test_those_under_way_are_told_to_end() -> None:
    building = Building()
    each = built(building, ["a", "slow", "b"])
    assert next(each) == ["a"]
    each.close()  # type: ignore[attr-defined]
    assert building.given_up.is_set() and building.thrown == ["slow"] and helpers() == []
