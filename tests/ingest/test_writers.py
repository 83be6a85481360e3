"""How long the last sequence of a writer is kept."""

from lastword.ingest.staging import Writers

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
