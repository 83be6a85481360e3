"""The tests of test_offsets.py, over a log in a bucket."""

from tests.server.test_offsets import *  # noqa: F403
