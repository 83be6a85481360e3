"""`verify` names every mutant of a small directory; `python -m tests.tools.mutants` runs more of them."""

from tests.support.exhaustive import stride
from tests.tools.mutants import run


def test_every_mutant_is_named_or_excused(tmp_path):
    counts, missed = run(300 // stride(5), 12, tmp_path)
    assert missed == []
    assert counts["named"] > 45
