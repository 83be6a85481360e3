"""Every store keeps the promises of the interface."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lastword.clock import ManualClock, SystemClock
from lastword.errors import UnconditionalStoreError
from lastword.objects import open_store
from tests.bucket.test_servers import life
from tests.fakes.objects import Bucket
from tests.objects.conformance import (
    CHECKS,
    Check,
    lists_have_more_than_one_page,
    one_of_many_creates_succeeds,
    one_of_many_swaps_succeeds,
    the_probe_accepts_the_store_and_leaves_nothing,
)
from tests.support.exhaustive import stride
from tests.support.stores import Server

NAMES = itertools.count()
long = pytest.mark.slow  # a thousand requests
quick_checks = [pytest.param(c, marks=long) if c is lists_have_more_than_one_page else c for c in CHECKS]
each_check_by_http = pytest.mark.parametrize("check", quick_checks, ids=lambda check: check.__name__)
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
@pytest.mark.parametrize("prefix", ["", "/some/prefix"], ids=["root", "prefix"])
def test_memory(check: Check, prefix: str, tmp_path: Path) -> None:
    with open_store(f"memory://conformance-{next(NAMES)}{prefix}") as store:
        check(store, tmp_path)


@each_check
def test_the_double(check: Check, tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now_ms())  # the check of the probe compares it with this machine's
    check(Bucket(clock=clock).process(), tmp_path)


@each_check_by_http
def test_moto(check: Check, moto: Server, tmp_path: Path) -> None:
    with moto.open(check.__name__) as store:
        check(store, tmp_path)


@each_check_by_http
def test_gcs(check: Check, gcs: Server, tmp_path: Path) -> None:
    with gcs.open(check.__name__) as store:
        check(store, tmp_path)


# One test for each server that takes seconds to start.


@pytest.mark.slow
def test_azurite(azurite: Server, tmp_path: Path) -> None:
    """A page of Azure has 5,000 names, so the check of lists meets one page."""
    left_out = {lists_have_more_than_one_page} if stride(2) > 1 else set()  # 5 s
    for check in CHECKS:
        if check in left_out:
            continue
        with azurite.open(check.__name__) as store:
            check(store, tmp_path)
    assert life(f"{azurite.root}/a/log", azurite.options) == life("memory://azurite/log", None)


@pytest.mark.slow
def test_s3mock(s3mock: Server, tmp_path: Path) -> None:
    """S3Mock checks a condition and writes in two steps: two creates of one name may both succeed."""
    left_out = {
        one_of_many_creates_succeeds,
        one_of_many_swaps_succeeds,
        the_probe_accepts_the_store_and_leaves_nothing,
    }
    if stride(2) > 1:
        left_out.add(lists_have_more_than_one_page)  # 12 s
    for check in CHECKS:
        if check not in left_out:
            with s3mock.open(check.__name__) as store:
                check(store, tmp_path)
    with pytest.raises(UnconditionalStoreError, match="of one new name at the same time"):
        for place in range(40):  # four creates at the same time: by chance only one of them may succeed
            life(f"{s3mock.root}/{place}/log", s3mock.options)
