"""The tests of test_transactions.py, over a log in a bucket."""

from tests.server.test_transactions import *  # noqa: F403
