"""Hypothesis strategies: logs of magic 2 as lists of batches."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.naive.pack import Record, encode_batch

T = 1_700_000_000_000

times = st.one_of(st.integers(T - 100, T + 100), st.just(-1), st.integers(-(1 << 63), (1 << 63) - 1))
payloads = st.one_of(st.none(), st.binary(max_size=20), st.integers(0, 400).map(lambda n: b"v" * n))
headers = st.lists(
    st.tuples(st.binary(max_size=6), st.one_of(st.none(), st.binary(max_size=10))), max_size=3
).map(tuple)


def keys(distinct: int = 6) -> st.SearchStrategy[bytes | None]:
    """Draw from few keys, so that keys repeat, with lengths around the limits of hash and arena entry."""
    lengths = (0, 1, 7, 8, 9, 16, 17, 24, 40, 254, 255, 300)
    pool = [bytes([65 + i % 26]) * lengths[i % len(lengths)] for i in range(distinct * 2)]
    return st.one_of(st.none(), st.sampled_from(pool), st.sampled_from(pool), st.binary(max_size=30))


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    most: int = 6,
    first_offset: int = 0,
    time: st.SearchStrategy[int] = times,
    attribute_choices: tuple[int, ...] = (0, 0, 0, 0x08, 0x20, 0x40),
    gap: st.SearchStrategy[int] | None = None,
    with_empty: bool = True,
    leader_epochs: tuple[int, ...] = (-1, 0, 1, 2, 3),
    producers: tuple[tuple[int, int, int], ...] = ((-1, -1, -1), (5, 2, 9)),
) -> list[bytes]:
    """Draw batches with ascending offsets and gaps; some empty, some control, some with a horizon (T)."""
    gaps = gap if gap is not None else st.sampled_from([0, 0, 0, 1, 3, 100, 5000])
    offset = first_offset
    encoded = []
    for _ in range(draw(st.integers(0, most))):
        base = offset + draw(gaps)
        attributes = draw(st.sampled_from(attribute_choices))
        records = []
        position = base
        for _ in range(draw(st.integers(0 if with_empty else 1, 5))):
            position += draw(gaps)
            records.append(Record(position, draw(time), draw(keys()), draw(payloads), draw(headers)))
            position += 1
        last = max(position - 1, base) + draw(st.sampled_from([0, 0, 2]))
        horizon = draw(st.sampled_from([T - 1, T, T + 1])) if attributes & 0x40 else None
        largest = draw(st.integers(T, T + 5)) if attributes & 8 else None
        encoded.append(
            encode_batch(
                records,
                base_offset=base,
                last_offset=last,
                attributes=attributes,
                base_timestamp=horizon,
                max_timestamp=largest,
                leader_epoch=draw(st.sampled_from(leader_epochs)),
                producer=draw(st.sampled_from(producers)),
            )
        )
        offset = last + 1
    return encoded
