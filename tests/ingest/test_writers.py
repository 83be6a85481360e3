"""How long the last sequence of a writer is kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.ingest.staging import Writers
from tests.support.exhaustive import few

DAY_MS = 24 * 3600 * 1000


def test_who_commits_nothing_for_a_month_is_forgotten():
    writers = Writers({})
    writers.note("quiet", 7, 0)
    for day in range(1, 31):
        writers.note("busy", day, day * DAY_MS)
        assert writers.last("quiet") == 7
    writers.note("busy", 31, 31 * DAY_MS)
    assert writers.last("quiet") == -1 and writers.last("busy") == 31


def test_a_jump_of_the_clock_forgets_no_writer():
    """A machine starts with a wrong clock and gets the right time: forward and back."""
    now = 1_700_000_000_000
    writers = Writers({})
    writers.note("stream", 7, now)
    for step in (365 * DAY_MS, 0, -700 * DAY_MS, 1000, 365 * DAY_MS):
        now += step
        writers.note("other", 1, now)
        assert writers.last("stream") == 7


def test_a_writer_that_commits_while_the_clock_is_behind_is_not_forgotten():
    """A machine starts with the date of its battery's death, and gets the right one from the network."""
    now = 1_700_000_000_000
    writers = Writers({})
    writers.note("other", 1, now)
    writers.note("stream", 7, now - 365 * DAY_MS)
    writers.note("other", 2, now)
    assert writers.last("stream") == 7


@settings(max_examples=few(200))
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([-400, -31, -1, 0, 1, 2, 9, 400])), max_size=60
    )
)
def test_a_writer_is_kept_for_thirty_days_of_commits(commits):
    """Time between commits counts from zero to a day, whatever the clock shows."""
    writers, now, idle = Writers({}), 1_700_000_000_000, {}
    for number, (name, days) in enumerate(commits):
        now += days * DAY_MS
        passed = min(max(days, 0), 1)
        idle = {other: (last, spent + passed) for other, (last, spent) in idle.items()} | {name: (number, 0)}
        writers.note(name, number, now)
        assert {n: writers.last(n) for n in "abc"} == {
            n: idle[n][0] if n in idle and idle[n][1] <= 30 else -1 for n in "abc"
        }
