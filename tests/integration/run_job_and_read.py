"""Runs a job over all records of its topic and reads its table, in one Spark application, for spark-submit.

Arguments: a file for the result, the table's name in SQL, the job's script, and the arguments of the job. The result is
a JSON list with [partition, offset] of each row.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(result: str, table: str, script: str, *arguments: str) -> None:
    """Runs the job twice: on PySpark 4.1 an AvailableNow run is one batch, and the first run repeats a batch."""
    sys.path.insert(0, str(Path(script).parent))
    job = importlib.import_module(Path(script).stem)
    for _ in range(2):
        if job.main(list(arguments)):
            sys.exit(1)
    spark = SparkSession.getActiveSession()
    assert spark is not None
    rows = spark.sql(f"SELECT partition, offset FROM {table} ORDER BY partition, offset").collect()
    Path(result).write_text(json.dumps([list(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
