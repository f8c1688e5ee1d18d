"""Replaces ``pyspark.worker`` under PySpark's own daemon: each task runs the statements that the test sends."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import traceback
from typing import BinaryIO

from spark_group_source.spark import python_worker


def main(infile: BinaryIO, outfile: BinaryIO) -> None:
    """Runs one task and answers with the value of ``answer``, or with the error."""
    names = {"gc": gc, "os": os, "socket": socket, "sys": sys, "python_worker": python_worker, "fd": infile.fileno()}
    code = infile.read(int.from_bytes(infile.read(4), "big"))
    try:
        exec(code, names)
        answer = repr(names.get("answer"))
    except Exception:
        answer = traceback.format_exc()
    with contextlib.suppress(OSError):
        outfile.write(len(answer.encode()).to_bytes(4, "big") + answer.encode())
        outfile.flush()
