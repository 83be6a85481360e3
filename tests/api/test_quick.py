"""Figures from the garbage accounts: equal to counted ones where they are exact, else marked."""

import lastword
from lastword.api import inspections
from lastword.clock import ManualClock


def opened(path, mode="a", **settings):
    return lastword.open(path, mode, clock=ManualClock(), log_cleaner_enable=False, **settings)


def filled(logs, count=3000, **config):
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=20_000, **config)
    topic.extend([(b"k%d" % (n * 7 % 400), b"v" * (n % 50)) for n in range(count)], partition=0)
    return topic


def counted(topic, monkeypatch):
    """Return `describe` and `segments`, computed from every record."""
    with monkeypatch.context() as patch:
        patch.setattr(inspections, "index_statement", lambda *_: None)
        return topic.describe(), topic.segments()


def no_record(*_):
    raise AssertionError("a record was looked at")


def test_accounts_of_the_whole_log_say_what_counting_says(tmp_path, monkeypatch):
    with opened(tmp_path) as logs:
        topic = filled(logs)
        logs.dirs.log("t", 0).roll()
        logs.clean(due=True)  # the accounts are up to date, whether or not the drive is within its target
        wanted = counted(topic, monkeypatch)
        assert wanted[0][0].records > 0
        monkeypatch.setattr(inspections, "_resolved", no_record)
        assert (topic.describe(), topic.segments()) == wanted
        assert (topic.describe(quick=True), topic.segments(quick=True)) == wanted


def test_they_are_saved_and_answer_a_reader(tmp_path, monkeypatch):
    with opened(tmp_path) as logs:
        topic = filled(logs, 20_000)
        logs.clean()
    with opened(tmp_path, "r") as logs:
        topic = logs.topic("t")
        wanted = counted(topic, monkeypatch)
        monkeypatch.setattr(inspections, "_resolved", no_record)
        assert (topic.describe(), topic.segments()) == wanted


def test_what_was_appended_since_is_counted_or_marked(tmp_path, monkeypatch):
    with opened(tmp_path) as logs:
        topic = filled(logs)
        logs.clean()
        topic.append(b"k1", b"new", partition=0)
        wanted = counted(topic, monkeypatch)
        assert (topic.describe(), topic.segments()) == wanted and wanted[0][0].exact
        (quick,) = topic.describe(quick=True)
        assert not quick.exact and quick.size_bytes == wanted[0][0].size_bytes
        assert quick.records == wanted[0][0].records and quick.garbage_bytes < wanted[0][0].garbage_bytes


def test_a_sample_is_an_estimate(tmp_path, monkeypatch):
    with opened(tmp_path, log_cleaner_dedupe_buffer_size=65536) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=60_000)
        for _ in range(3):
            topic.extend([(b"key-%08d" % n, b"v" * 30) for n in range(6000)], partition=0)
        logs.dirs.log("t", 0).roll()
        logs.clean(due=True)
        (exact,), (quick,) = topic.describe(), topic.describe(quick=True)
        assert exact.exact and not quick.exact
        assert abs(quick.garbage_bytes - exact.garbage_bytes) < 0.25 * exact.size_bytes
        assert not topic.segments(quick=True)[0].exact
