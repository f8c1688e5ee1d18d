"""The example project's own tests, run as its owner runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = REPOSITORY / "tests" / "example_project"
TIMEOUT_S = 300.0


def installed(place: Path) -> Path:
    """What pip lays beside a package for pytest to find its plugin: made from pyproject.toml, installed or not."""
    section = re.search(
        r"^\[project\.entry-points\.pytest11\]\n(.+?)\n\n",
        (REPOSITORY / "pyproject.toml").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert section
    information = place / "spark_group_source-0.0.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: spark_group_source\nVersion: 0.0.0\n")
    (information / "entry_points.txt").write_text("[pytest11]\n" + section[1].replace('"', "") + "\n")
    return place


def test_the_tests_of_the_example_project_pass_in_a_separate_directory(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    before = sorted(project.rglob("*"))
    paths = [str(REPOSITORY), str(installed(tmp_path / "installed"))]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "--durations=0"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"\b3 passed in ", done.stdout), done.stdout
    assert sorted(project.rglob("*")) == before, "what it writes goes elsewhere"
