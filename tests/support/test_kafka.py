"""Which lines of a broker's log count as errors."""

from __future__ import annotations

from tests.support.kafka import errors_of

CONTROLLER = """\
08:20:56,854 ERROR [ControllerApis] [ControllerApis nodeId=1] Unexpected error handling request
java.util.concurrent.CompletionException: NotControllerException: The active controller appears to be node 1.
12:52:39,630 ERROR [ReplicationControlManager] [QuorumController id=1] Timed out heartbeat from broker 1.
08:20:56,858 INFO  [QuorumController] [QuorumController id=1] Becoming the active controller
"""
LOG = "08:20:57,000 ERROR [LogManager] There was an error in one of the threads during logs loading"


def test_the_controller_reports_nothing_about_log_directories() -> None:
    assert errors_of(CONTROLLER) == []
    assert errors_of(CONTROLLER + LOG) == [LOG]
    assert errors_of(LOG, ignored=["logs loading"]) == []
