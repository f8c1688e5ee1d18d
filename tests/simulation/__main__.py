from __future__ import annotations
import sys, time, traceback
from tests.simulation.substitution import substituted
import pyspark.sql.datasource
from tests.simulation import scenario

with substituted():
    proto = sys.argv[1]
    a, b = int(sys.argv[2]), int(sys.argv[3])
    verbose = len(sys.argv) > 4
    t0 = time.time()
    n = 0
    bad = {}
    for seed in range(a, b):
        r = scenario.run(seed, proto, verbose=verbose)
        n += 1
        if verbose or r.failure:
            if verbose:
                print("\n".join(r.story))
            print(seed, type(r.failure).__name__, str(r.failure)[:300])
            if verbose and r.failure:
                traceback.print_exception(r.failure)
    dt = time.time() - t0
    print(n, "runs", round(dt, 2), "s", round(n / dt * 60), "a minute")
