"""What appending, reading and restoring count."""

from lastword import metrics


def test_appends_reads_and_restores_are_counted(logs):
    topic = logs.create_topic("counted", cleanup_policy="compact")
    before = metrics.APPEND_SECONDS.count("disk")
    topic.append(b"a", b"1")
    topic.extend([(b"b", b"2"), (b"c", b"3")], ack="disk")
    size = sum(segment.size_bytes for segment in topic.segments())
    assert metrics.APPEND_RECORDS.value("counted") == 3
    assert metrics.APPEND_BYTES.value("counted") == size
    assert metrics.APPEND_SECONDS.count("disk") == before + 1
    assert len(list(topic.read())) == 3
    assert metrics.READ_BYTES.value("counted") == size
    logs.state("counted")
    assert metrics.STATE_RESTORE_SECONDS.value("counted") > 0
