"""Old formats in the logs that Kafka 2.8 wrote: our reader returns every record that Kafka read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.records import formats
from tests.formats import logs
from tests.golden import loader
from tests.support.legacy import build_wrapper

CASES = [
    name
    for pattern in ("v0-*", "v1-*", "upgrade-*", "compact-v[01]*", "compact-upgrade*")
    for name in loader.names(pattern)
]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("v")])
def test_writing_what_was_read_gives_the_same_entries(name: str, tmp_path: Path) -> None:
    """Uncompressed messages are equal byte for byte; wrappers except for choices of the compressor."""
    case = loader.case(name)
    for path in loader.partition_files(case.unpack(tmp_path)):
        data = path.read_bytes()
        for header in logs.headers(data, path.name):
            records = list(formats.LEGACY.read_records(data, header, path.name))
            if header.codec == 0:
                (record,) = records
                rebuilt = formats.build_message(
                    header.magic,
                    record.offset,
                    record.key,
                    record.value,
                    record.timestamp,
                    log_append=header.log_append,
                )
                assert rebuilt == data[header.position : header.position + header.size]
                continue
            stamp = header.max_timestamp if header.log_append else None
            rebuilt = build_wrapper(header.magic, header.codec, records, log_append_ms=stamp)
            again = logs.read_header(rebuilt, 0, path.name)
            assert formats.LEGACY.crc_ok(rebuilt, again)
            assert (again.last_offset, again.attributes, again.max_timestamp) == (
                header.last_offset,
                header.attributes,
                header.max_timestamp,
            )
            if not header.log_append:
                assert formats.inner_bytes(rebuilt, again) == formats.inner_bytes(data, header)
            assert list(formats.LEGACY.read_records(rebuilt, again)) == records
