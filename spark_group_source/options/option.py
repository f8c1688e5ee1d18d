"""One row of the option table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """The public name, the place of the value in the settings, the parser of the text, and what the option means.

    The place is ``field`` for a field of ``SourceOptions``, or ``part.field``. Descriptions of limits read
    "Maximum ...", "Minimum ..." or "How long ...", with the unit. Messages never show the value of a ``secret`` option.
    A batch query ignores a ``stream_only`` option with a warning: it has one batch and no member.
    """

    name: str
    place: str
    parse: Callable[[str], Any]
    description: str
    required: bool = False
    secret: bool = False
    stream_only: bool = False
