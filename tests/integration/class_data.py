"""An archive of the classes that Spark loads: with it, a driver's JVM takes half of the time to its first query.

This file makes it, once for an environment, while the first tests run, and it stays beside the environment's own files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from spark_group_source.testing.file_lock import file_lock
from spark_group_source.testing.spark import SETTINGS

CONF = Path(__file__).resolve().parents[2] / "conf"
ARCHIVE = Path(sys.prefix) / f"spark-{pyspark.__version__}.jsa"
TIMEOUT_S = 180.0
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


@contextmanager
def used() -> Iterator[None]:
    """Makes all drivers that this process starts use ``conf`` and the archive, as soon as it exists."""
    # Java archives no classes behind a directory with files in the class path, so what is in conf are options here.
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    settings = [line.split() for line in lines if line and not line.startswith("#")]
    options = [str(SETTINGS["spark.driver.extraJavaOptions"]), f"-Dlog4j2.configurationFile={CONF}/log4j2.properties"]
    options += [f"-D{name}={value}" for name, value in settings]
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*options, f"-XX:SharedArchiveFile={ARCHIVE}", QUIET])
    if ARCHIVE.exists():
        yield
        return
    command = [sys.executable, "-m", "tests.integration.class_data"]
    with subprocess.Popen(command, cwd=CONF.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        yield


def main() -> None:
    """Makes the archive if it is missing: of the classes of a stream with Python tasks, and of files."""
    made = ARCHIVE.with_suffix(".new")
    with file_lock(ARCHIVE.with_suffix(".lock"), TIMEOUT_S):
        if ARCHIVE.exists():
            return
        os.environ["SPARK_SUBMIT_OPTS"] = f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:ArchiveClassesAtExit={made}"
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        with tempfile.TemporaryDirectory() as work:
            spark.range(4).write.parquet(f"{work}/a")
            rows = spark.readStream.schema("id LONG").parquet(f"{work}/a")
            rows = rows.mapInArrow(lambda parts: parts, rows.schema)
            writer = rows.writeStream.foreachBatch(lambda batch, _: batch.write.parquet(f"{work}/b", mode="append"))
            writer.option("checkpointLocation", f"{work}/c").trigger(availableNow=True).start().awaitTermination()
            spark.read.parquet(f"{work}/b").groupBy("id").count().orderBy("id").collect()
        spark.stop()
        jvm.stdin.close()
        jvm.wait()
        made.rename(ARCHIVE)


if __name__ == "__main__":
    main()
