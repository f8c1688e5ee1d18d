"""The sink that tests of the listener share."""

from __future__ import annotations

import pytest

from tests.unit.lag.events import Reports


@pytest.fixture
def reports() -> Reports:
    """A sink that keeps the reports it receives."""
    return Reports()
