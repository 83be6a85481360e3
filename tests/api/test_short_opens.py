"""A directory that is open for a moment is not cleaned behind its owner's back."""

from __future__ import annotations

from pathlib import Path

import lastword


def test_a_new_topic_does_not_wake_the_background(tmp_path: Path) -> None:
    """It looked at once, and what had just been written was gone before the first back-off."""
    for number in range(8):
        with lastword.open(tmp_path / str(number), "a") as logs:
            topic = logs.create_topic("t", cleanup_policy="compact")
            for n in range(6):
                topic.append(b"k", b"%d" % n)
            logs.dirs.log("t", 0).roll()
            topic.append(b"k", b"newest")
        with lastword.open(tmp_path / str(number)) as logs:
            assert sum(1 for _ in logs.topic("t").read()) == 7
