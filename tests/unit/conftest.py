"""What unit tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.unit.hand_clock import Hand

# How long an example takes is the machine's business.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Takes the place of ``time.sleep`` too."""
    made = Hand()
    monkeypatch.setattr("time.sleep", made.sleep)
    return made
