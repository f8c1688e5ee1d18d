"""Whether a broker was ever reached from this executor: from this Python worker, or from an earlier one.

A worker may be younger than its executor: Spark ends idle workers after a minute, and with
``spark.python.worker.reuse=false`` each worker after one task. So a worker that has reached a broker creates the
directory of the read-ahead files, which all workers of an executor share, and later workers look for the directory.
"""

from __future__ import annotations

import contextlib
import os

from spark_group_source.fetch.read_ahead import query_directory
from spark_group_source.wire.cluster import Cluster


class FirstContact:
    """Whether a broker was ever reached from this executor, for one run of a query.

    Args:
        query_id: identifies the run of the query. Without an id, only this process counts.
    """

    def __init__(self, cluster: Cluster, query_id: str) -> None:
        self._cluster = cluster
        self._directory = query_directory(query_id)
        self._made = False
        self._recorded = False

    @property
    def made(self) -> bool:
        """Whether a broker was ever reached. A directory that was not used for ten minutes may be gone."""
        if not self._made:
            of_earlier_worker = self._directory is not None and self._directory.is_dir()
            self._made = self._cluster.reached or of_earlier_worker
        return self._made

    def record(self) -> None:
        """Notes for later workers that a broker has answered. If the disk fails, they do not learn of it."""
        if self._recorded or self._directory is None:
            return
        self._recorded = True
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            os.utime(self._directory)  # unused ones are removed
