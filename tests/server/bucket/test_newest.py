"""The tests of test_newest.py, over a log in a bucket."""

from tests.server.test_newest import *  # noqa: F403
