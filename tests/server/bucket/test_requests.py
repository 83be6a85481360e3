"""The tests of test_requests.py, over a log in a bucket."""

from tests.server.test_requests import *  # noqa: F403
