"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# Machines that run tests are busy: how long an example takes says nothing about the code.
settings.register_profile("lastword", deadline=None)
settings.load_profile("lastword")
