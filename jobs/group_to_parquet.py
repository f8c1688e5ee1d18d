"""Copies Kafka topics to Parquet as a member of a consumer group; run it with spark-submit.

    spark-submit jobs/group_to_parquet.py --bootstrap-servers broker:9092 --topic flights --group archive \\
        --output /data/flights --checkpoint /data/flights.checkpoint --trigger available-now --schema "id STRING"

Each micro-batch becomes the directory OUTPUT/run=ID/batch=N, written anew when Spark repeats a batch, so that every
record is there once. ID is the query's, kept in its checkpoint: with a new checkpoint the group's committed offsets say
where to go on, and the old batches stay. (Spark's own Parquet sink would take the first batches of a new checkpoint
for ones that it has already, and drop them.)

Without --schema the columns are key, value, topic, partition, offset and timestamp, as Kafka has them. With it, the
JSON in value becomes the schema's columns, beside topic, partition, offset and timestamp. A record that is not such
JSON is kept: the schema's columns are null, and its text is in _corrupt_record.
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
    """Runs the job. Exit codes: 0 done, or stopped by a signal; 1 the query failed; 2 wrong arguments."""
    parser = job_parser("group_to_parquet", __doc__)
    parser.add_argument("--output", required=True, help="directory of the Parquet files")
    parser.add_argument("--schema", help='of the JSON in value, as DDL: "id STRING, delay INT"')
    return run(parser.parse_args(arguments), lambda spark, args: [copy(shape(source(spark, args), args.schema), args)])


def copy(rows: DataFrame, args: argparse.Namespace, name: str = "") -> StreamingQuery:
    """Starts the query that writes these rows below ``args.output``; a name where it is one of several."""
    query_id: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        # The first batch may come before start() has returned, and with it the id.
        place = f"{args.output}/run={query_id.result(START_TIMEOUT_S)}/batch={number}"
        batch.write.mode("overwrite").parquet(place)

    query = begin(rows.writeStream.foreachBatch(write), args, name)
    query_id.set_result(query.id)
    return query


if __name__ == "__main__":
    sys.exit(main())
