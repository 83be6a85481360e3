"""The plain walk over sound batches, whatever their size."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.files import DEFAULT
from lastword.records.batch import BatchBuilder
from lastword.segment.scan import SoundWalk


def batch(offset: int, value_bytes: int) -> bytes:
    builder = BatchBuilder()
    builder.append(1, b"k", bytes(value_bytes))
    return builder.build(offset)


@pytest.mark.parametrize(
    "sizes", [(3 << 20, 10), (10, 3 << 20, 10), ((1 << 20) - 70, 1 << 20, 5), (3 << 20,)]
)
def test_a_batch_larger_than_what_is_read_at_a_time(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Recovery treated it as a torn tail, and would have cut it off."""
    data = [batch(n, size) for n, size in enumerate(sizes)]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(data))
    for end in (path.stat().st_size, path.stat().st_size - 1):
        with DEFAULT.open_read(str(path)) as handle:
            walk = SoundWalk(handle, path.name, 0, end, 0, 0)
            header_sizes = [header.size for header in walk]
        whole = end == path.stat().st_size
        assert header_sizes == [len(encoded) for encoded in data][: len(data) if whole else -1]
        assert (walk.damage is None) == whole
