"""Reading of Java properties files, as far as the shipped ones go: ``name=value`` and ``#`` lines."""

from __future__ import annotations


def parse_properties(text: str) -> dict[str, str]:
    """The properties in the text; raises ValueError for a line that is neither blank, comment nor ``name=value``."""
    found = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"not a property: {line!r}")
        found[name.strip()] = value.strip()
    return found
