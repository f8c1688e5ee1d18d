"""Adds pages from outside docs/ to the site, and makes links work in the repository and on the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
ELSEWHERE = {"README.md": "index.md", "spark_group_source/DESIGN.md": "design.md"}
"""Path in the repository -> page of the site."""

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```)", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside ``docs``."""
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(REPOSITORY / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files into links between pages; a link to a file without a page becomes its text."""
    uri = page.file.src_uri
    source = next((path for path, to in ELSEWHERE.items() if to == uri), f"docs/{uri}")

    def on_site(found: re.Match[str]) -> str:
        text, (path, hash_, anchor) = found[1], found[2].partition("#")
        if not path or "://" in path:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = ELSEWHERE.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else "")
        return f"[{text}]({posixpath.relpath(target, posixpath.dirname(uri))}{hash_}{anchor})" if target else text

    return "".join(part if part.startswith("```") else LINK.sub(on_site, part) for part in CODE.split(markdown))
