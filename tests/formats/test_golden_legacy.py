"""Old formats in the logs that Kafka 2.8 wrote: our reader returns every record that Kafka read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.records import formats
from tests.formats import logs
from tests.golden import loader

CASES = [
    name
    for pattern in ("v0-*", "v1-*", "upgrade-*", "compact-v[01]*", "compact-upgrade*")
    for name in loader.names(pattern)
]
CODECS = ("none", "gzip", "snappy", "lz4")
TYPES = {"CreateTime": 0, "LogAppendTime": 1, "NoTimestampType": -1}


@pytest.mark.parametrize("name", CASES)
def test_records_and_headers(name: str, tmp_path: Path) -> None:
    case = loader.case(name)
    root = case.unpack(tmp_path)
    for stage in case.stages:
        batches, records = [], []
        for path in loader.partition_files(root / stage):
            data = path.read_bytes()
            for header in logs.headers(data, path.name):
                batches.append(
                    {
                        "file": path.name,
                        "position": header.position,
                        "size": header.size,
                        "magic": header.magic,
                        "lastOffset": header.last_offset,
                        "crc": header.crc,
                        "codec": CODECS[header.codec],
                        "maxTimestamp": header.max_timestamp,
                    }
                )
            records += [(path.name, header, record) for header, record in logs.records(data, path.name)]
        listed = case.batches(stage)
        assert batches == [{key: line[key] for key in batches[0]} for line in listed]
        expected = case.expected(stage)
        assert len(records) == len(expected)
        for (file, header, record), line in zip(records, expected, strict=True):
            assert (file, header.position, header.magic) == (line["file"], line["position"], line["magic"])
            assert (record.offset, record.timestamp) == (line["offset"], line["timestamp"])
            assert (record.timestamp_type, record.key) == (TYPES[line["timestampType"]], line["key"])
            assert record.headers == line["headers"]
            assert loader.value_matches(line, record.value)


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
            rebuilt = formats.build_wrapper(header.magic, header.codec, records, log_append_ms=stamp)
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


@pytest.mark.parametrize(
    "case_name",
    ["compact-v0-none-dr0", "compact-v0-gzip-retain", "compact-v1-none-dr0", "compact-v1-lz4-dr0"],
)
def test_cleaning_keeps_what_kafka_kept(case_name: str, tmp_path: Path) -> None:
    """Filtering `before` by the offsets that Kafka kept gives the entries of `after`.

    Uncompressed entries are equal byte for byte.
    """
    case = loader.case(case_name)
    root = case.unpack(tmp_path)
    for number in (1, 2, 3):
        before, after = f"round{number}-before", f"round{number}-after"
        kept = {line["offset"] for line in case.expected(after)}
        rebuilt = []
        for path in loader.partition_files(root / before):
            data = path.read_bytes()
            for header in logs.headers(data, path.name):
                _, messages = formats.messages(data, header, path.name)
                filtered = formats.filter_entry(data, header, [m.offset in kept for m in messages], path.name)
                if filtered is not None:
                    rebuilt.append(filtered)
        listed = [line for line in case.batches(after) if line["size"]]
        assert [(f.last_offset, f.max_timestamp) for f in rebuilt] == [
            (line["lastOffset"], line["maxTimestamp"]) for line in listed
        ]
        cleaned = b"".join(path.read_bytes() for path in loader.partition_files(root / after))
        data = b"".join(f.data for f in rebuilt)
        assert [record for _, record in logs.records(data, "rebuilt")] == [
            record for _, record in logs.records(cleaned, "after")
        ]
        if "none" in case.facts["codecs"]:
            assert data == cleaned
