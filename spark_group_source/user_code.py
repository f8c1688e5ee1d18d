"""Functions and classes of the user, which options name as ``module:name``."""

from __future__ import annotations

import importlib
from typing import Any


def load(path: str, kind: str) -> Any:
    """Imports ``module:name``. ``kind`` names the result in messages: ``function`` or ``Class``.

    Raises:
        ValueError: the import fails, or the result is not callable; the message is the rest of a sentence that begins
            with "It must be".
    """
    module, _, name = path.strip().partition(":")
    try:
        loaded = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise ValueError(f"module:{kind}, and the import of the module failed: {error}") from error
    except Exception as error:  # a user's module may raise any
        raise ValueError(f"module:{kind}, and the import of the module failed: {error!r}") from error
    if not callable(loaded):
        raise ValueError(f"module:{kind}, and {module} has no {kind} {name!r}")
    return loaded
