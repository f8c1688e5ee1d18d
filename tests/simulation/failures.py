"""Decisions of runs in which a sentence breaks, if the product has one of the mistakes of ``mutants.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("failures.json")
"""By mutant: the group protocol, the seed, what broke, and the draws that are not ordinary."""

FAILURES: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
