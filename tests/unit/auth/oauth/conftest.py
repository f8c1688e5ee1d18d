"""A token endpoint for tests of OAuth."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.auth.oauth.token_service import TokenService, running


@pytest.fixture
def service() -> Iterator[TokenService]:
    with running() as started:
        yield started
