"""A user's program that mypy has checked also runs."""

import lastword
from tests.api import typed_use


def test_it_runs(tmp_path):
    typed_use.run(str(tmp_path / "data"))
    with lastword.open(tmp_path / "data") as logs:
        assert dict(logs.state("totals")) == {"a": 1}
