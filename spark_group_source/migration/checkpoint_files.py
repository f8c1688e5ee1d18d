"""The files of a checkpoint. Spark reads them, so they may be on any file system that Spark reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
        if paths is None:
            return False
        return not _has_name(paths, name)

    def has_file(self, name: str) -> bool:
        """Whether there is a file with this name."""
        return _has_name(self._existing(self._path(name)), name)

    def names(self, directory: str) -> list[str] | None:
        """The names of the files directly in this directory, without hidden files; ``None`` if the directory does not
        exist."""
        paths = self._paths(self._path(directory))
        if paths is None:
            return None
        return [path.rpartition("/")[2] for path in paths if _directory_of(path) == directory]

    def parents(self, directory: str) -> list[str]:
        """The names of the subdirectories in which this directory exists and has a file."""
        parents = set()
        for path in self._existing(f"{_literal(self._directory)}/*/{directory}"):
            if _directory_of(path) == directory:
                parents.add(path.split("/")[-3])
        return sorted(parents)

    def content(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            ValueError: Spark finds the file damaged.
        """
        try:
            rows = self._load(self._path(name)).select("content").collect()
        except Exception as error:  # an error of py4j in a classic session, and another error with Connect
            if "FAILED_READ_FILE" not in str(error):
                raise
            raise ValueError("Spark cannot read it (FAILED_READ_FILE), perhaps its checksum is wrong") from error
        return b"".join(bytes(row.content) for row in rows)  # Spark skips an empty file

    def _path(self, name: str) -> str:
        return f"{_literal(self._directory)}/{name}"

    def _existing(self, pattern: str) -> list[str]:
        """As :meth:`_paths`; empty if nothing exists there."""
        paths = self._paths(pattern)
        if paths is None:
            return []
        return paths

    def _paths(self, pattern: str) -> list[str] | None:
        """The paths of the files below; ``None`` if nothing exists there.

        ``inputFiles`` lists the files without reading them. Rows would lack empty files, and so the newest batch if its
        file is empty. The pattern is given twice, because Spark logs a long stack trace if a single pattern matches
        nothing.
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


def _has_name(paths: Iterable[str], name: str) -> bool:
    return any(path.endswith(f"/{name}") for path in paths)


def _directory_of(path: str) -> str:
    """The name of the directory that holds this file."""
    return path.rpartition("/")[0].rpartition("/")[2]


def _literal(path: str) -> str:
    """The path for Spark's reader, which takes these characters as a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path.rstrip("/"))
