"""The tests of test_undecodable.py, over a log in a bucket."""

from tests.server.test_undecodable import *  # noqa: F403
