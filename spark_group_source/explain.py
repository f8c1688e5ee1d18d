"""The explanation of each error code: its section in ``errors.md``, which is ``docs/errors.md`` inside the package."""

from __future__ import annotations

import difflib
import re
from importlib import resources

PAGE = "errors.md"
_SECTION = re.compile(r"^## (\w+)\n\n(.*?)\s*(?=^## |\Z)", re.M | re.S)
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
