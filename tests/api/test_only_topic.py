"""A verb that works on one topic uses the only topic; with several topics, its error names them."""

import pytest

from lastword.errors import UnknownTopicError, UsageError
from tests.api.conftest import clock, logs  # noqa: F401


def test_several_topics(logs):  # noqa: F811
    for name in ("cities", "towns", "users"):
        topic = logs.create_topic(name, key_serializer="str", cleanup_policy="compact")
        topic.extend([("ada", b"1"), ("ada", b"2")])
    chosen = ["users", "cities", "users"]
    for results in (logs.plan(chosen), logs.duplication(chosen), logs.clean(tuple(chosen))):
        assert [result.topic for result in results] == ["users", "cities"]
    assert logs.expire(chosen) == logs.transactions(chosen) == logs.plan([]) == []
    assert logs.verify(chosen).records == 2
    with pytest.raises(UsageError, match="needs one topic"):
        logs.clean(chosen, 0)
    with pytest.raises(UnknownTopicError, match="userz"):
        logs.clean(["towns", "userz"])
    assert logs["towns"].describe()[0].records == 2  # nothing was cleaned


def calls(logs, path):  # noqa: F811
    return (
        lambda: logs.explain(key="ada").topic,
        lambda: logs.restore(to=path / "users.jsonl")[0].topic,
        lambda: logs.audit(delivered={"ada": 0}).ok and "users",
    )


def test_the_only_topic(logs, tmp_path):  # noqa: F811
    for call in calls(logs, tmp_path):
        with pytest.raises(UsageError, match="has no topics"):
            call()
    logs.create_topic("users", key_serializer="str", cleanup_policy="compact").append("ada", b"1")
    assert [call() for call in calls(logs, tmp_path)] == ["users"] * 3
    logs.create_topic("cities")
    for call in calls(logs, tmp_path):
        with pytest.raises(UsageError, match="has 2 topics") as caught:
            call()
        assert caught.value.remedy == "name one of them: cities, users"
