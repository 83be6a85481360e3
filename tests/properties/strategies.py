"""Parametrization by strategy: properties of the cleaner are tested with each strategy of a topic."""

from __future__ import annotations

import pytest

from lastword.config.tables import STRATEGIES

by_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
