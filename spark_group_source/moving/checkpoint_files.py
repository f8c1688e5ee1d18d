"""Reads the files of a checkpoint with Spark, which reaches every file system, also through Spark Connect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class CheckpointFiles:
    """Files below one directory. Nothing is written."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self._directory = directory

    def has_directory(self, name: str) -> bool:
        """Whether there is a directory with this name."""
        paths = self._paths(self._path(name))
        return paths is not None and not any(path.endswith(f"/{name}") for path in paths)

    def has_file(self, name: str) -> bool:
        """Whether there is a file with this name."""
        return any(path.endswith(f"/{name}") for path in self._paths(self._path(name)) or [])

    def names(self, directory: str) -> list[str] | None:
        """The names of the files right in this directory, without hidden ones; ``None`` if there is no directory."""
        paths = self._paths(self._path(directory))
        if paths is None:
            return None
        return [path.rpartition("/")[2] for path in paths if path.split("/")[-2:-1] == [directory]]

    def parents(self, directory: str) -> list[str]:
        """The names of the subdirectories that contain this directory with a file in it."""
        paths = self._paths(f"{_literal(self._directory)}/*/{directory}") or []
        return sorted({path.split("/")[-3] for path in paths if path.split("/")[-2:-1] == [directory]})

    def content(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            ValueError: Spark finds it damaged.
        """
        try:
            rows = self._load(self._path(name)).select("content").collect()
        except Exception as error:  # py4j's in a classic session, and another with Connect
            if "FAILED_READ_FILE" not in str(error):
                raise
            raise ValueError("Spark cannot read it (FAILED_READ_FILE), perhaps its checksum is wrong") from error
        return b"".join(bytes(row.content) for row in rows)  # Spark skips an empty file

    def _path(self, name: str) -> str:
        return f"{_literal(self._directory)}/{name}"

    def _paths(self, pattern: str) -> list[str] | None:
        """The paths of the files below; ``None`` if nothing exists there.

        ``inputFiles`` lists them without reading. Rows would lack empty files, and so the newest batch if it is empty.
        The pattern is given twice, because for a single one that matches nothing Spark logs a long stack trace.
        """
        try:
            return [unquote(path) for path in set(self._load(pattern, pattern).inputFiles())]
        except AnalysisException as error:  # from load() in a classic session, from inputFiles() with Connect
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise

    def _load(self, *patterns: str) -> DataFrame:
        # Without recursion, directories named like a=1 would become columns.
        return self._spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(list(patterns))


def _literal(path: str) -> str:
    """The path for Spark's reader, which takes these characters as a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path.rstrip("/"))
