"""The notebook runs from its first cell to its last, and shows what its text says."""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOK = REPOSITORY / "docs" / "notebooks" / "flights.md"
CELL_TIMEOUT_S = 330
"""For one cell; the one that takes longest ends by itself after 300 s."""


pytestmark = pytest.mark.slow


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Outputs of each code cell. The kernel and Spark's processes see this tree."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_CONF_DIR", str(REPOSITORY / "conf"))
    notebook = jupytext.read(NOTEBOOK)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=place).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_reads_every_flight_plots_them_and_leaves_no_lag(outputs: list[list[Any]], tmp_path: Path) -> None:
    shown = [each for cell in outputs for each in cell]
    (plot,) = [each.data["image/png"] for each in shown if "image/png" in each.get("data", {})]
    (tmp_path / "flights.png").write_bytes(base64.b64decode(plot))
    numbers = [each.data["text/plain"] for each in shown if each.output_type == "execute_result"]
    assert numbers == ["27004", "27004"]
    text = "".join(each.get("text", "") for each in shown)
    lags = re.findall(r"^notebook +\S+ +(\d) +\d+ +\d+ +(\d+) ", text, re.M)
    assert sorted(lags) == [("0", "0"), ("1", "0"), ("2", "0"), ("3", "0")]
