"""The README's option table is what the code says. To write it anew: ``python tests/unit/test_readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark_group_source.options.table import OPTIONS, SourceOptions

README = Path(__file__).resolve().parents[2] / "README.md"
TABLE = re.compile(r"(<!-- options: [^\n]*-->\n).*?(<!-- /options -->)", re.DOTALL)


def default_of(field: str) -> str:
    default: Any = SourceOptions.__dataclass_fields__[field].default
    if field == "client_id":
        return "application, topics and process"
    if field == "read_committed":
        return "`read_uncommitted`"
    if field == "group_id":
        return "required in streams"
    if field == "starting_offsets":
        return "`latest`; `earliest` in bounded reads"
    if field == "starting_time_or_latest":
        return "`error`"
    if field == "ending_offsets":
        return "`latest`"
    if field == "ssl_check_host_name":
        return "`https`"
    if default in (None, (), frozenset()):
        return ""
    if isinstance(default, int):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default * 1000:.0f}`" if field != "max_trigger_delay" else f"`{default / 60:.0f}m`"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default}`"


def table() -> str:
    rows = ["| option | default | |", "|---|---|---|"]
    for option in OPTIONS:
        default = "required" if option.required else default_of(option.field)
        rows.append(f"| `{option.name}` | {default} | {option.doc} |")
    return "\n".join(rows) + "\n"


def test_the_readme_lists_every_option_with_its_default() -> None:
    found = TABLE.search(README.read_text())
    assert found
    assert found[0] == f"{found[1]}{table()}{found[2]}"


if __name__ == "__main__":
    README.write_text(TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", README.read_text()))
