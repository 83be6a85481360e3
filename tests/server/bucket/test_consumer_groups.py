"""The tests of test_consumer_groups.py, over a log in a bucket."""

from tests.server.test_consumer_groups import *  # noqa: F403
