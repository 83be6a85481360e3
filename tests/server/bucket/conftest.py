"""The tests of the protocol, over a log in a bucket in memory.

The modules here have the tests of those beside this folder. `make test` takes every n-th of them.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import pytest

import lastword
from tests.server.conftest import Opened
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
    "test_a_full_drive_is_answered",
    "test_a_plan_that_cannot_be_stored_is_made_again",
    "test_a_sync_that_fails_is_answered",
    "test_a_commit_waits_for_the_drive_if_the_settings_say_so",
    "test_a_tombstone_stays_until_a_group_has_read_it",
    "test_a_partition_never_has_two_owners",
    "test_a_history_finds_a_planted_fault",
    "test_a_decision_is_synced_before_its_first_marker",
    "test_a_decision_whose_sync_failed_once_is_completed",
    # The end of a transaction is one commit here.
    "test_a_marker_that_cannot_be_appended_is_tried_again",
    "test_a_partition_that_fails_costs_the_others_no_markers",
    "test_markers_wait_for_appends_in_work",
    # They serve the log twice, or read it before a commit.
    "test_offsets_are_read_from_the_partition_of_their_group",
    "test_a_transactional_id_is_forgotten",
    "test_of_two_transactions_the_later_offset_wins",
    # A commit is a segment, and an answer has not all of them.
    "test_limits_end_at_whole_batches",
    # They count the listings of a directory.
    "test_a_creation_reads_the_id_of_no_other_topic",
    "test_a_change_of_settings_or_a_deletion_reads_no_id_of_another_topic",
    "test_changes_of_settings_list_the_directory_once",
}
_numbers = count()


@pytest.fixture
def opened() -> Opened:
    url = f"memory://served-{next(_numbers)}/log"
    return partial(lastword.open, url, "a", log_cleaner_enable=False, lastword_commit_linger_ms=0)


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
