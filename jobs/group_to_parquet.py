"""Copies Kafka topics to Parquet as a member of a consumer group; run it with spark-submit.

    spark-submit jobs/group_to_parquet.py --bootstrap-servers broker:9092 --topic flights --group archive \\
        --output /data/flights --checkpoint /data/flights.checkpoint --trigger available-now --schema "id STRING"

Each micro-batch writes the directory OUTPUT/run=ID/batch=N. If Spark repeats a batch, the job overwrites its directory,
so the output has every record once. ID is the id of the query in its checkpoint. With a new checkpoint the query
continues at the group's committed offsets, and the old directories stay. (Spark's own Parquet sink would drop the first
batches of a new checkpoint, because it already has batches with these numbers.)

Without --schema the columns are key, value, topic, partition, offset and timestamp. With --schema the JSON in value
becomes the columns of the schema, followed by topic, partition, offset and timestamp. If a value is not such JSON,
these columns are null, and _corrupt_record has the text.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import Future

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin, job_parser, run, shape, source

START_TIMEOUT_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_parquet", __doc__)
    parser.add_argument("--output", required=True, help="directory for the Parquet files")
    parser.add_argument("--schema", help='columns of the JSON in value as DDL: "id STRING, delay INT"')
    return run(parser.parse_args(arguments), lambda spark, args: [copy(shape(source(spark, args), args.schema), args)])


def copy(rows: DataFrame, args: argparse.Namespace, name: str = "") -> StreamingQuery:
    """Starts the query that writes these rows below ``args.output``; ``name`` if it is one of several."""
    query_id: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        # The first batch may begin before start() returns the query with its id.
        directory = f"{args.output}/run={query_id.result(START_TIMEOUT_S)}/batch={number}"
        batch.write.mode("overwrite").parquet(directory)

    query = begin(rows.writeStream.foreachBatch(write), args, name)
    query_id.set_result(query.id)
    return query


if __name__ == "__main__":
    sys.exit(main())
