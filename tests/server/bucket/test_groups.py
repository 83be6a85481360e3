"""The tests of test_groups.py, over a log in a bucket."""

from tests.server.test_groups import *  # noqa: F403
