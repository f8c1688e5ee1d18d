"""One row of the option table, and parsers that several packages use.

A parser raises ValueError for an invalid text; the message is the rest of a sentence that begins with "It must be".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_group_source.spelling import completed_or_nearest
from spark_group_source.text import Secret


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


def non_blank(text: str) -> str:
    """Any text that is not blank."""
    if not text.strip():
        raise ValueError("a name that is not empty")
    return text.strip()


def one_of(text: str, names: tuple[str, ...]) -> str:
    """One of these names, in upper case."""
    name = text.strip().upper()
    if name in names:
        return name
    expected = f"one of {', '.join(names)}"
    near = completed_or_nearest(name, names)
    if near is not None:
        expected += f" (did you mean {near}?)"
    raise ValueError(expected)


def listed(text: str, separators: str = ",") -> list[str]:
    """The items of a list, without blanks around them. Empty items are left out."""
    items = []
    for part in re.split(f"[{separators}]", text):
        item = part.strip()
        if item:
            items.append(item)
    return items


def secret(text: str) -> Secret:
    """Any text that is not empty."""
    if not text:
        raise ValueError("a text that is not empty")
    if text.endswith(("\n", "\r")):
        raise ValueError("a text without a line break at its end: after reading a file, remove it with strip()")
    return Secret(text)
