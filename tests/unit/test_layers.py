"""The import rules of the design: code for Spark, for the group and for bytes stays separate."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import spark_group_source

PACKAGE = Path(spark_group_source.__file__).parent
PURE = """
errors text varints clock offsets options.parsing options.checks options.table options.source_options
options.offset_json options.offset_parsers options.offset_specs options.unsupported_names
query.start_specs query.limits query.pace query.starts.rules query.starts.resolver group.membership
group.error_actions group.classic.states group.consumer.states group.commits group.description lag.model
lag.rate_window lag.source_progress lag.backlog exactly_once.positions
"""
SPARK_DOORS = """
spark.schema spark.stream spark.notifications.set_up spark.batch spark.source spark.tasks
spark.start_checks.started_queries lag.listener migration.checkpoint_files
migration.position exactly_once.batches exactly_once.merge exactly_once.postgres __init__
"""
ABOVE = {"auth", "options", "query", "spark", "lag", "migration", "exactly_once", "testing"}
FORBIDDEN = {
    "__init__": {"lag", "exactly_once", "testing"},
    "__main__": {"testing"},
    "group": {"fetch", "records", *ABOVE},
    "fetch": {"group", *ABOVE},
    "records": {"group", "fetch", "wire", *ABOVE},
    "wire": {"group", "fetch", "records", *ABOVE},
    "auth": {"group", "fetch", "records", *ABOVE} - {"auth"},
    "options": {"records", "query", "spark", "lag", "exactly_once", "testing"},
    "query": {"auth", "spark", "lag", "exactly_once", "testing"},
    "spark": {"auth", "lag", "migration", "exactly_once", "testing"},
    "lag": {"auth", "records", "spark", "exactly_once", "testing"},
    "migration": {"auth", "fetch", "group", "lag", "query", "records", "spark", "exactly_once", "testing", "wire"},
    "exactly_once": {"auth", "fetch", "group", "lag", "options", "query", "records", "spark", "testing", "wire"},
    "testing": set[str](),
}
ELSEWHERE = {"lag", "migration", "exactly_once", "testing"}
"""Modules outside the layers do not import these, because the source runs without them."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def ours(path: Path) -> set[str]:
    prefix = "spark_group_source."
    return {name.removeprefix(prefix) for name in imports(path) if name.startswith(prefix)}


def test_packages_import_only_lower_layers() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = name_of(path)
        layer = name.split(".")[0]
        forbidden = {each.split(".")[0] for each in ours(path)} & FORBIDDEN.get(layer, ELSEWHERE)
        if layer != "testing" and name not in SPARK_DOORS.split():
            forbidden |= {each for each in imports(path) if each.split(".")[0] == "pyspark"}
        wrong += [f"{name} imports {each}" for each in forbidden]
    assert wrong == []


def modules() -> dict[str, Path]:
    """The files of the package, by the names of their modules."""
    return {name_of(path).removesuffix(".__init__"): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """The modules of the package that a file imports, also for types only or inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("spark_group_source"):
            continue
        place = (node.module or "").removeprefix("spark_group_source").removeprefix(".")
        for alias in node.names:
            inside = f"{place}.{alias.name}".removeprefix(".")
            found.add(inside if inside in known else place)
    return found & {*known}


def test_no_module_imports_itself_through_others() -> None:
    known = modules()
    sorter = TopologicalSorter({name: imported_modules(path, known) for name, path in known.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}")


def test_options_import_only_the_settings_of_tasks_and_members() -> None:
    allowed = {
        "fetch.task_settings",
        "group.settings",
        "group.subscription",
        "group.assignors",
    }  # the last when an option names one
    used = {each for path in (PACKAGE / "options").glob("*.py") for each in ours(path)}
    assert {each for each in used if each.startswith(("fetch", "group"))} == allowed


def test_pure_modules_have_no_sockets_threads_or_files() -> None:
    impure = {"socket", "threading", "select", "subprocess", "os"}
    used = {name: imports(PACKAGE / (name.replace(".", "/") + ".py")) & impure for name in PURE.split()}
    assert {name: modules for name, modules in used.items() if modules} == {}
