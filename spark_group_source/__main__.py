"""``python -m spark_group_source``: commands for users of the installed package.

The explanation of an error code is its section in ``messages.md``, which is ``docs/messages.md`` inside the package.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from importlib import resources

from spark_group_source import __version__

PAGE = "messages.md"
_SECTION = re.compile(r"^### ([A-Z_]+)\n\n(.*?)\s*(?=^##)", re.M | re.S)
_PAGE_LINK = re.compile(r"\[([^\]]+)\]\((\w[\w.]*\.md)[^)]*\)")
_ANCHOR_LINK = re.compile(r"\[([^\]]+)\]\(#[^)]*\)")
_MESSAGE = re.compile(r"(?<!\*)\*([^*]+)\*")


def sections() -> dict[str, str]:
    """Error code -> its section as plain text, in the order of the page."""
    page = resources.files("spark_group_source").joinpath(PAGE).read_text(encoding="utf-8")
    return {code: _plain(section) for code, section in _SECTION.findall(page)}


def explanation(code: str) -> str:
    """The section of an error code; the case, and the brackets of the message, do not matter.

    Raises:
        LookupError: no error has this code; the message names the nearest code.
    """
    found, wanted = sections(), code.strip("[] .").upper()
    if wanted not in found:
        nearest = difflib.get_close_matches(wanted, found, n=1, cutoff=0.0)[0]
        raise LookupError(f"No error has the code '{code}'. The nearest code is {nearest}.")
    return f"{wanted}\n\n{found[wanted]}"


def overview() -> str:
    """One line for each code: the first sentence of its section."""
    found = sections()
    width = max(map(len, found))
    return "\n".join(f"{code:{width}}  {section.splitlines()[0]}" for code, section in found.items())


def _plain(section: str) -> str:
    """Markdown without links and emphasis; a page of the documentation is named by its path."""
    section = _ANCHOR_LINK.sub(r"\1", _PAGE_LINK.sub(r"\1 (docs/\2 in the project's repository)", section))
    return _MESSAGE.sub(r'"\1"', section)


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
