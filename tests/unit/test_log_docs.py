"""``docs/messages.md`` explains every warning and error in the log, ``docs/monitoring.md`` every counter."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import spark_group_source
from spark_group_source.group.counters import Counters
from spark_group_source.lag.prometheus import PREFIX, LagCollector

PACKAGE = Path(spark_group_source.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "messages.md").read_text()
MONITORING = (PACKAGE.parent / "docs" / "monitoring.md").read_text()
SHOWN = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
ITEMS = re.findall(r"^- (`.+?`): ", PAGE.partition("\n## Log lines\n")[2], re.M)
LINES = [line for item in ITEMS for line in re.findall(r"`([^`]+)`", item)]
CODE = MONITORING.partition("\n## Runbooks")[2].split("`")[1::2]
RUNBOOKS = [" ".join(each.split()) for each in CODE if "..." in each]
COUNTERS = re.findall(r"^\| `([a-z ]+)` \| [^|]+ \|$", MONITORING.partition("\n## Runbooks")[0], re.M)
METRICS = {metric.name + "_total" * (metric.type == "counter") for metric in LagCollector().collect()}
VARIES = re.compile(r"%[-.\d]*[a-z]")


def logged() -> list[tuple[str, str]]:
    """(format, level) of all lines that are logged at level INFO or above, without the group's name."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if "testing" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
                found += [(text.removeprefix("group %s: "), level) for text, level in line_of(node)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "raise_or_warn":
                happened, otherwise = (text_of(node.args[position]) for position in (2, 4))
                found.append((f"{happened}. {otherwise}, because failOnDataLoss is false.", "warning"))
    found.remove(("%s. %s, because failOnDataLoss is false.", "warning"))
    # A line of nothing but what the group answered has no words to look for.
    return sorted((text, level) for text, level in found if re.search("[a-z]{3}", VARIES.sub("", text)))


def line_of(call: ast.Call) -> list[tuple[str, str]]:
    """What a call of a logger says; ``log.log(level, ...)`` counts as the level INFO that it has at most."""
    method = ast.unparse(call.func).removeprefix("log.")
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    level = SHOWN.get("info" if method == "log" else method)
    return [(texts[0], level)] if texts and level else []


def text_of(argument: ast.expr) -> str:
    """A text with ``%s`` for what varies."""
    if isinstance(argument, ast.JoinedStr):
        return "".join(text_of(part) for part in argument.values)
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else "%s"


def says(row: str, text: str) -> bool:
    """Whether a row, with ``...`` for what varies, is of this line."""
    return re.fullmatch(".*".join(map(re.escape, row.split("..."))), text) is not None


def test_every_warning_and_error_is_explained_once_and_every_line_explained_or_quoted_is_one_of_the_log() -> None:
    found = logged()
    rows = {text: [row for row in LINES if says(row, text)] for text, level in found if level != "info"}
    assert {text: each for text, each in rows.items() if len(each) != 1} == {}
    quoted = [*LINES, *(f"{start}..." for start in RUNBOOKS)]
    assert [row for row in quoted if not any(says(row, text) for text, _ in found)] == []


def test_the_counters_are_those_of_the_code() -> None:
    assert [each.name.replace("_", " ") for each in fields(Counters)] == COUNTERS


def test_alerts_name_metrics_that_exist() -> None:
    alerted = re.findall(rf"{PREFIX}\w+", MONITORING)
    assert alerted
    assert set(alerted) <= METRICS


def test_the_table_of_metrics_has_each_once() -> None:
    table = MONITORING.partition("\n| metric")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(PREFIX + name for name in re.findall(r"`(\w+)`", " ".join(cells))) == sorted(METRICS)
