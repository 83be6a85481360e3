"""Sketches are values: they merge in any order, cross processes as bytes, and keep their stated error."""

import numpy as np
import pytest

from lastword.errors import CorruptFileError
from lastword.records.batch import BatchBuilder
from lastword.records.chunk import chunk_of
from lastword.tools import duplication
from lastword.tools.duplication import KeySet, Sketch, Sketcher, theta_hashes


def sketch_of(keys, value=b"v"):
    sketcher = Sketcher()
    keys = list(keys)
    for first in range(0, len(keys), 1000):
        builder = BatchBuilder(0)
        for key in keys[first : first + 1000]:
            builder.append(1_700_000_000_000, key, value)
        sketcher.add(chunk_of(builder.build(first)))
    return sketcher.sketch()


def named(first, end):
    return (b"key-%d" % n for n in range(first, end))


def test_the_hash_is_the_packages_own():
    import datasketches

    values = np.array([0, 1, -1, 2**63 - 1, -(2**63), 0x0123456789ABCDEF, 42], np.int64)
    sketch = datasketches.update_theta_sketch(5)
    for value in values.tolist():
        sketch.update(value)
    assert sorted(sketch) == sorted(theta_hashes(values).tolist())


def test_sorting_out_in_arrays_changes_nothing():
    import datasketches

    rng = np.random.default_rng(7)
    values = rng.integers(-(2**63), 2**63, 100_000)
    plain = datasketches.update_theta_sketch(duplication.LG_K)
    sketcher = Sketcher()
    for part in np.array_split(values, 50):
        for value in np.unique(part).tolist():
            plain.update(value)
        sketcher._take(part.view(np.uint64))
    assert sketcher.sketch().keys.to_bytes() == bytes(plain.compact().serialize())


def test_few_keys_are_counted():
    sketch = sketch_of([b"a", b"b", b"a", None], value=None)
    assert (sketch.records, sketch.keyless, sketch.tombstones, sketch.keyed) == (4, 1, 3, 3)
    assert sketch.keys.estimate == duplication.Estimate(2.0, 0.0)


def test_merging_is_adding_in_any_order_and_through_bytes():
    parts = [sketch_of(named(n * 3000, n * 3000 + 6000)) for n in range(4)]
    whole = Sketch.merged(parts)
    again = Sketch.merged(Sketch.from_bytes(sketch.to_bytes()) for sketch in reversed(parts))
    nested = Sketch.merged([Sketch.merged(parts[:2]), Sketch.merged(parts[2:])])
    assert whole.to_bytes() == again.to_bytes() == nested.to_bytes()
    assert whole.records == 24_000
    assert whole.keys.estimate.rounded == 15_000


def test_common_and_missing_keys():
    first, second = sketch_of(named(0, 5000)).keys, sketch_of(named(4000, 9000)).keys
    assert first.common(second).estimate.rounded == 1000
    assert first.without(second).estimate.rounded == 4000
    assert KeySet.union([first, second]).estimate.rounded == 9000
    assert KeySet().estimate.rounded == 0
    assert first.common(KeySet()).estimate.rounded == 0


def test_bytes_that_are_no_sketch_are_refused():
    data = sketch_of(named(0, 10)).to_bytes()
    for bad in (b"", data[:20], b"x" + data[1:], data[:-1], data[:10] + b"\xff" + data[11:]):
        with pytest.raises(CorruptFileError):
            Sketch.from_bytes(bad)


def test_a_damaged_batch_is_told():
    builder = BatchBuilder(0)
    builder.append(1, b"k", b"v")
    data = bytearray(builder.build(0))
    data[61] = 0x7F  # the record's length
    with pytest.raises(Exception, match="offset"):
        Sketcher().add(chunk_of(bytes(data), verify=False))


@pytest.mark.slow
def test_a_million_keys_within_the_error_in_fixed_memory():
    rng = np.random.default_rng(11)
    worst = 0.0
    for _ in range(5):
        sketcher = Sketcher()
        for _ in range(20):
            sketcher._take(rng.integers(0, 2**64, 50_000, np.uint64))
        sketch = sketcher.sketch()
        estimate = sketch.keys.estimate
        assert 0.005 < estimate.deviation / estimate.keys < 0.011
        worst = max(worst, abs(estimate.keys - 1_000_000) / estimate.deviation)
        assert len(sketch.to_bytes()) < 8 * 2 * 2**duplication.LG_K
    assert worst < 4
