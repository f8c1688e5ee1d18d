"""One row of the option table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """The public name, the field it fills, how its text is read, and what it is for.

    What stands in a ``secret`` one is never shown.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    doc: str
    required: bool = False
    secret: bool = False
