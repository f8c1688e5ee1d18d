"""Reads the shipped Java properties files, which use only ``name=value`` and ``#`` lines."""

from __future__ import annotations


def parse_properties(text: str) -> dict[str, str]:
    """Returns the properties; raises ValueError for a line that is neither blank, comment nor ``name=value``."""
    properties = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"not a property: {line!r}")
        properties[name.strip()] = value.strip()
    return properties
