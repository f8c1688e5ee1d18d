"""JSON that others have written: users, other clients, token servers."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes, *, pairs: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        pairs: return an object as a tuple of pairs, which keeps both of two equal names; a dictionary would silently
            drop the first.

    Raises:
        ValueError: the text is no JSON, or is nested too deeply to be read.
    """
    hook = None
    if pairs:
        hook = tuple
    try:
        return json.loads(text, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
