"""Every strategy that a topic may have: a property of the cleaner is one of each."""

from __future__ import annotations

import pytest

from lastword.config.tables import STRATEGIES

by_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
