"""The tests of test_aborted.py, over a log in a bucket."""

from tests.server.test_aborted import *  # noqa: F403
