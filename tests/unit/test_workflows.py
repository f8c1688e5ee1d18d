"""The workflows run commands that exist, on the versions that the project supports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = REPOSITORY / ".github" / "workflows"


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(WORKFLOWS.glob("*.yml")):
        for name, job in parsed(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def commands(job: dict[str, Any]) -> Iterator[str]:
    """The commands of a job, with each value of a list in its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job["steps"]:
        for line in step.get("run", "").splitlines():
            placeholder = re.search(r"\$\{\{ matrix\.(\w+) }}", line)
            values = matrix.get(placeholder[1], [""]) if placeholder else [""]
            yield from (line.replace(placeholder[0], value) if placeholder else line for value in values)


def test_workflows_run_targets_and_scripts_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    missing = []
    for where, job in jobs():
        for command in commands(job):
            program, *arguments = command.split()
            asked = {each for each in arguments if "=" not in each} if program == "make" else set()
            if not (asked and asked <= targets) and not (REPOSITORY / program).is_file():
                missing.append(f"{where}: {command}")
    assert missing == []


def test_a_change_is_checked_on_each_python_of_the_classifiers_and_each_minor_version_of_pyspark() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    include = parsed(WORKFLOWS / "check.yml")["jobs"]["run"]["strategy"]["matrix"]["include"]
    assert {each["python"] for each in include} == set(re.findall(r"Python :: (3\.\d+)", project))
    assert {each["pyspark"][:3] for each in include} == {"4.0", "4.1", "4.2", "4.3"}


def test_nightly_tries_the_brokers_of_the_makefile() -> None:
    default = re.search(r"^BROKERS \?= (.*)$", (REPOSITORY / "Makefile").read_text(), re.M)
    assert default
    assert parsed(WORKFLOWS / "nightly.yml")["jobs"]["brokers"]["strategy"]["matrix"]["kafka"] == default[1].split()
