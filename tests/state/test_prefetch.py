"""Work that a thread does ahead: order, errors, progress, and a stop on request."""

import threading

import pytest

from lastword.state.newest import prefetch


def test_everything_comes_in_order_and_errors_come_last():
    def work(tell):
        for number in range(100):
            tell(number, 100)
            yield number
        raise OSError("the disk is gone")

    heard, numbers = [], []
    with pytest.raises(OSError, match="gone"):
        for number in prefetch(work, lambda done, total: heard.append((threading.current_thread(), done)), 3):
            numbers.append(number)
    assert numbers == list(range(100))
    assert [done for _, done in heard] == list(range(100))
    assert {who for who, _ in heard} == {threading.current_thread()}


def test_it_runs_ahead_so_far_and_no_farther():
    produced = []
    arrived = threading.Event()

    def work(tell):
        for number in range(10):
            produced.append(number)
            if number == 3:
                arrived.set()
            yield number

    parts = prefetch(work, None, 3)
    assert next(parts) == 0
    assert arrived.wait(10)  # 0 is in use, 1 and 2 wait, and 3 waits for room
    assert produced == [0, 1, 2, 3]
    assert list(parts) == list(range(1, 10))


@pytest.mark.parametrize("tells", [True, False])
def test_closing_ends_the_thread_at_its_next_word(tells):
    ended = []

    def work(tell):
        try:
            for number in range(10**9):
                if tells:
                    tell(number, 10**9)
                else:
                    yield number
                if number == 0:
                    yield number
        finally:
            ended.append(threading.current_thread())

    parts = prefetch(work, None, 2)
    assert next(parts) == 0
    parts.close()
    assert len(ended) == 1 and not ended[0].is_alive()
