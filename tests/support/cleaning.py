"""Clean or plan one partition, with the options of a request and of a context in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.partition import clean_partition, plan_partition
from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.files import Files
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.resolve import whole

_REQUEST = {field.name for field in fields(CleanRequest)}
_CONTEXT = {field.name for field in fields(CleanContext)}


@contextmanager
def by_hash(wanted: bool = True) -> Iterator[None]:
    """Let a map of hashes resolve all logs, small ones too, if `wanted`, else none. It needs 1 MiB."""
    limit = whole.HASHES_FROM_BYTES
    whole.HASHES_FROM_BYTES = 0 if wanted else 1 << 62
    try:
        yield
    finally:
        whole.HASHES_FROM_BYTES = limit


def _taken(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names & options.keys()}


def clean(
    log: PartitionLog, config: TopicConfig, *, record_first_dirty: Callable[[int], None], **options: Any
) -> CleanRound | None:
    """Clean the partition. `options` are those of `CleanRequest`, `CleanContext` and `clean_partition`."""
    request = CleanRequest(**_taken(options, _REQUEST))
    context = CleanContext(log.files, log.clock, **_taken(options, _CONTEXT))
    return clean_partition(log, config, request, context, record_first_dirty=record_first_dirty, **options)


def plan(view: PartitionView, config: TopicConfig, *, files: Files, clock: Clock, **options: Any) -> Plan:
    """Plan the cleaning. `options` are those of `clean`."""
    request = CleanRequest(**_taken(options, _REQUEST))
    context = CleanContext(files, clock, dry=True, **_taken(options, _CONTEXT))
    return plan_partition(view, config, request, context, **options)
