"""One row of the option table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_group_source.options.descriptions import DESCRIPTIONS


@dataclass(frozen=True, slots=True)
class Option:
    """The public name, the field of the parsed options, and the parser of the text.

    Messages never show the value of a ``secret`` option.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    required: bool = False
    secret: bool = False

    @property
    def description(self) -> str:
        """What the option means, in one sentence or two."""
        return DESCRIPTIONS[self.name]
