"""``python -m spark_group_source``: commands for users of the installed package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from spark_group_source import __version__
from spark_group_source.explain import explanation, overview


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser("python -m spark_group_source", description="Kafka consumer groups for PySpark.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="print the meaning of an error code and what to do")
    explain.add_argument("code", nargs="?", metavar="CODE", help="for example DATA_LOSS; without it: all codes")
    code = parser.parse_args(arguments).code
    try:
        print(explanation(code) if code else overview(), flush=True)
    except LookupError as unknown:
        print(unknown.args[0], file=sys.stderr)
        return 2
    except BrokenPipeError:  # a program such as head has closed the pipe; Python flushes again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
