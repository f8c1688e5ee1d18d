"""What unit tests share."""

from __future__ import annotations

import pytest

from tests.unit.hand_clock import Hand


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Takes the place of ``time.sleep`` too."""
    made = Hand()
    monkeypatch.setattr("time.sleep", made.sleep)
    return made
