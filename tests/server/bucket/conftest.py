"""The tests of the protocol, over a log in a bucket in memory.

The modules here have the tests of those beside this folder. `make test` takes every n-th of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import lastword
from tests.support.exhaustive import stride

FOLDER = Path(__file__).parent
EVERY = 5
DIRECTORY_ONLY = {
    # They write the open log, or a drive.
    "test_acks_all_waits_for_the_drive_if_the_topic_says_so",
    "test_one_answer_has_the_batches_of_several_segments",
    "test_a_committed_read_ends_at_the_last_stable_offset",
    "test_a_committed_read_waits_for_the_decision",
    "test_the_largest_time_of_an_open_transaction_is_not_committed",
    "test_a_fetch_has_the_aborted_transactions_of_its_own_records",
    "test_a_fetch_goes_on_while_its_segment_is_replaced",
    "test_the_view_has_the_newest_record_of_each_key",
    "test_an_open_transaction_ends_the_view",
    # A commit is a segment, and an answer has not all of them.
    "test_limits_end_at_whole_batches",
    # They count the listings of a directory.
    "test_a_creation_reads_the_id_of_no_other_topic",
    "test_a_change_of_settings_or_a_deletion_reads_no_id_of_another_topic",
    "test_changes_of_settings_list_the_directory_once",
}
_numbers = count()


@pytest.fixture
def logs() -> Iterator[lastword.LogDir]:
    url = f"memory://served-{next(_numbers)}/log"
    with lastword.open(url, "a", log_cleaner_enable=False, lastword_commit_linger_ms=0) as logs:
        yield logs


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == FOLDER and not hasattr(item.module, "OWN")]  # type: ignore[attr-defined]
    suited = [
        item
        for item in here
        if "logs" in item.fixturenames and item.originalname not in DIRECTORY_ONLY  # type: ignore[attr-defined]
    ]
    others = set(here) - set(suited[:: stride(EVERY)])
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]
