"""Functions and classes of the user's own, named in options as ``module:name``."""

from __future__ import annotations

import importlib
from typing import Any


def load(path: str, kind: str) -> Any:
    """What ``module:name`` stands for; the module must be importable on the driver.

    Raises:
        ValueError: there is no such thing; the message goes on from "It must be".
    """
    module, _, name = path.strip().partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise ValueError(f"module:{kind}, and importing the module gives: {error}") from None
    if not callable(found):
        raise ValueError(f"module:{kind}, and {module} has no {kind} {name!r}")
    return found
