"""Items prepared by two threads: in order, errors at their turn, few read ahead, no thread left over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.records.pipeline import SLOTS, prepared, second_thread
from tests.support.exhaustive import few


class Bad(Exception):
    pass


def numbers(count: int, *, ends_badly: bool = False) -> Callable[[int], Iterator[list[int]]]:
    def read(slots: int) -> Iterator[list[int]]:
        for number in range(count):
            yield [number]
        if ends_badly:
            raise Bad("read")

    return read


def pause(milliseconds: int) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1000)


@settings(max_examples=few(30), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20),
    st.booleans(),
    st.integers(1, 2),
    st.data(),
)
def test_in_order_whichever_part_is_slow(
    pauses: list[tuple[int, int]], ends_badly: bool, threads: int, data: st.DataObject
) -> None:
    """Each pair: the time to prepare an item, and the time to take it."""
    bad = data.draw(st.none() | st.integers(0, max(len(pauses) - 1, 0)))

    def prepare(item: list[int]) -> None:
        pause(pauses[item[0]][0])
        if item[0] == bad:
            raise Bad("prepare")
        item.append(item[0] ** 2)

    taken = []
    error_text = ""
    with second_thread("slots", threads) as second:
        try:
            with closing(prepared(numbers(len(pauses), ends_badly=ends_badly), prepare, second)) as each:
                for item in each:
                    pause(pauses[item[0]][1])
                    taken.append(tuple(item))
        except Bad as error:
            error_text = str(error)
    whole = len(pauses) if bad is None or bad >= len(pauses) else bad
    assert taken == [(number, number**2) for number in range(whole)]
    assert error_text == ("prepare" if whole < len(pauses) else "read" if ends_badly else "")


def test_at_most_so_many_are_read_ahead() -> None:
    read: list[int] = []

    def counted(slots: int) -> Iterator[int]:
        for number in range(30):
            read.append(number)
            yield number

    with second_thread("slots", 2) as second, closing(prepared(counted, lambda item: None, second)) as each:
        for item in each:
            pause(2)
            assert len(read) <= item + SLOTS


def test_both_threads_prepare() -> None:
    """The first two items wait at a barrier, which one thread alone could not pass."""
    met = threading.Barrier(2, timeout=10)

    def prepare(item: list[int]) -> None:
        if item[0] < 2:
            met.wait()

    with second_thread("slots", 2) as second:
        assert [item for (item,) in prepared(numbers(5), prepare, second)] == [0, 1, 2, 3, 4]


def test_without_waiting_for_a_second_thread_that_has_other_work() -> None:
    free = threading.Event()
    with ThreadPoolExecutor(1) as second:
        busy = second.submit(free.wait, 10)
        with closing(prepared(numbers(9), lambda item: None, second)) as each:
            assert [item for (item,) in each] == list(range(9))
        assert not busy.done()
        free.set()
        assert busy.result()


def test_given_up_in_the_middle() -> None:
    with second_thread("slots", 2) as second:
        assert second is not None
        with closing(prepared(numbers(1000), lambda item: None, second)) as each:
            assert next(each) == [0]
        assert second.submit(int).result(10) == 0  # it is free again


@settings(max_examples=few(20), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), st.integers(1, 2))
def test_what_is_left_behind_is_done_one_after_another(pauses: list[tuple[int, int]], threads: int) -> None:
    """Each pair: the time to take an item, and the work that it leaves."""
    done: list[int] = []
    busy = threading.Lock()

    def finish(number: int) -> None:
        assert busy.acquire(blocking=False), "one at a time"
        pause(pauses[number][1])
        done.append(number)
        busy.release()

    with (
        second_thread("slots", threads) as second,
        closing(prepared(numbers(len(pauses)), lambda item: None, second)) as each,
    ):
        for (number,) in each:
            pause(pauses[number][0])
            at_once = each.defer(partial(finish, number))
            assert done[:number] == list(range(number)), "what was left before is done"
            assert at_once == (threads == 1)
        each.drain()
        assert done == list(range(len(pauses)))


def test_an_error_of_what_was_left_is_told() -> None:
    def fail() -> None:
        raise Bad("left")

    with (
        second_thread("slots", 2) as second,
        closing(prepared(numbers(3), lambda item: None, second)) as each,
    ):
        assert next(each) == [0]
        each.defer(fail)
        with pytest.raises(Bad, match="left"):
            each.drain()
        each.drain()
