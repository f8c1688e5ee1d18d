"""Searches the product that is imported for a mistake, and prints what it finds as JSON: see ``__main__``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.simulation.scenario import PROTOCOLS, Result, run
from tests.simulation.shrink import shrink
from tests.simulation.substitution import substituted

KEPT = Path(__file__).with_name("failures.json")
"""By mutant: the group protocol, the seed, what broke, and the draws that are not ordinary; null: all of the seed. A
search that is aimed runs seeds with these draws: see ``Chance``."""

BY_KEPT = "by its kept decisions"

FAILURES: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}


def find(name: str, seconds: float) -> dict[str, Any]:
    """First repeats the decisions that are kept for this mistake, then runs aimed seeds until one fails.

    ``seconds`` are of processor time, so that a busy machine searches as long as an idle one.
    """
    began, runs = time.process_time(), 0
    kept = FAILURES.get(name, {})
    if "seed" in kept:
        result = run(kept["seed"], kept["protocol"], kept=kept["kept"])
        if result.failure is not None:
            return told(result, BY_KEPT)
    seed = 0
    while time.process_time() < began + seconds:
        seed += 1
        for protocol in PROTOCOLS:
            runs += 1
            result = run(seed, protocol, aim=kept.get("aim"))
            if result.failure is not None:
                return told(shrink(result), f"{runs} runs, {time.process_time() - began:.0f} s")
    return {}


def told(result: Result, how: str) -> dict[str, Any]:
    broken, story = f"{result.failure}".partition("\n")[0], result.story[-40:]
    where = {"protocol": result.protocol, "seed": result.seed, "kept": result.kept}
    return {**where, "broken": broken, "story": story, "how": f"{how}, {result.protocol} seed {result.seed}, {broken}"}


if __name__ == "__main__":
    with substituted():
        found = find(sys.argv[1], float(sys.argv[2]))
    print(json.dumps(found))
