"""Survivorship by age: it is learned, it is saved, and it never exceeds the number of distinct keys."""

import pytest

from lastword.accounts.estimates import Survivorship, age_class
from lastword.files import DEFAULT


def test_weighs_the_newest_observation_by_alpha():
    learned = Survivorship()
    learned.observe(1 << 20, 100, 80, alpha=0.3)
    assert learned.expected(1 << 20) == 0.8
    learned.observe(1 << 20, 100, 20, alpha=0.3)
    assert learned.expected(1 << 20) == pytest.approx(0.3 * 0.2 + 0.7 * 0.8)


def test_an_age_not_yet_seen_takes_the_nearest():
    learned = Survivorship()
    assert learned.expected(5) is None
    learned.observe(1 << 20, 100, 80, alpha=0.3)
    learned.observe(1 << 30, 100, 10, alpha=0.3)
    assert learned.expected(1 << 21) == 0.8
    assert learned.expected(1 << 29) == 0.1
    assert age_class(0) == age_class(1023) == 0
    assert age_class(1024) == 1
    assert age_class(1 << 63) == 53


@pytest.mark.parametrize("live", [0, 10, 150, 290, 300, 900])
def test_spread_sums_up_to_what_is_alive_and_no_segment_holds_more_than_it_has(live):
    learned = Survivorship({1: 0.9, 20: 0.1})
    shares = learned.spread([100, 100, 100], [1 << 10, 1 << 20, 1 << 40], live)
    assert sum(shares) == pytest.approx(min(live, 300))
    assert all(0 <= share <= 100 + 1e-9 for share in shares)
    assert shares[0] >= shares[1] >= shares[2]


def test_comes_back_after_a_restart_and_damage_is_forgotten(tmp_path):
    path = str(tmp_path / "survivorship")
    learned = Survivorship()
    learned.observe(1 << 20, 100, 80, alpha=0.3)
    learned.save(DEFAULT, path)
    assert Survivorship.load(DEFAULT, path).live_ratio == learned.live_ratio
    for damage in (b"", b"{", b"[]", b'{"live_ratio": {"1": 2}}', b'{"live_ratio": {"x": 1}}', b"\xff"):
        (tmp_path / "survivorship").write_bytes(damage)
        assert Survivorship.load(DEFAULT, path).live_ratio == {}
    (tmp_path / "survivorship").unlink()
    assert Survivorship.load(DEFAULT, path).live_ratio == {}
