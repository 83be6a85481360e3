"""Execute the notebooks under examples/, cell by cell in this process, without a Jupyter kernel."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.exhaustive import only_exhaustive

EXAMPLES = Path(__file__).parents[2] / "examples"


def execute(notebook: Path) -> tuple[dict[str, Any], int]:
    """Run all code cells; return their variables and the number of figures shown."""
    import matplotlib.pyplot as plt

    variables: dict[str, Any] = {}
    figures = 0
    for number, cell in enumerate(json.loads(notebook.read_text("utf-8"))["cells"], 1):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            exec(compile(source, f"{notebook.name}, cell {number}", "exec"), variables)
            for figure in map(plt.figure, plt.get_fignums()):
                figure.canvas.draw()
                figures += 1
            plt.close("all")
    return variables, figures


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@only_exhaustive
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_state_notebook(here, capsys):
    variables, figures = execute(EXAMPLES / "state.ipynb")
    assert figures == 3
    before, after = variables["before"], variables["after"]
    assert sum(row.garbage_bytes for row in before) > 10 * sum(row.live_bytes for row in before)
    assert sum(row.garbage_bytes for row in after) < sum(row.live_bytes for row in after)
    assert len(variables["on_disk"]) > 40  # some due cleanings ran
    assert "same values: True" in capsys.readouterr().out


def spark_notebook() -> dict[str, Any]:
    """Run the notebook; return the values that the test checks, because a session stays in its process."""
    variables, figures = execute(EXAMPLES / "spark.ipynb")
    names = ("before", "after", "kinds", "cleanings")
    return {"figures": figures, **{name: variables[name] for name in names}}


@pytest.mark.spark
@pytest.mark.beside
@pytest.mark.usefixtures("short_lived_jvms")
def test_the_spark_notebook(here, capfd):
    """The notebook runs in its own process: the tests of Spark share a session with other settings."""
    pytest.importorskip("pyspark")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(spark_notebook).result()
    assert result["figures"] == 3
    assert sum(row.garbage_bytes for row in result["before"]) > 5 * sum(
        row.live_bytes for row in result["before"]
    )
    assert sum(row.garbage_bytes for row in result["after"]) < sum(row.live_bytes for row in result["after"])
    assert set(result["kinds"]) == {"missing", "stale"} and min(result["kinds"].values()) > 100
    assert result["cleanings"] > 0
    assert "same rows: True" in capfd.readouterr().out


def test_notebooks_are_stored_without_outputs():
    for notebook in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), notebook


def test_the_site_shows_output_tables_and_pictures(tmp_path):
    plot = "import matplotlib.pyplot as plt\nprint('printed')\nplt.plot([1, 2])\nplt.show()"
    cells = [
        ("markdown", "# Title"),
        ("code", plot),
        ("code", "class Table:\n    def _repr_html_(self): return '<b>table</b>'\nTable()"),
        ("code", "1 + 2"),
    ]
    notebook = tmp_path / "small.ipynb"
    stored = [{"cell_type": kind, "source": [text]} for kind, text in cells]
    notebook.write_text(json.dumps({"cells": stored}))
    script = EXAMPLES.parent / "scripts" / "run_notebook.py"
    subprocess.run([sys.executable, script, notebook, tmp_path], check=True)
    page = (tmp_path / "small.md").read_text()
    shown = "# Title", "```text\nprinted\n```", "![Picture 1](small-1.svg)", "<b>table</b>", "```text\n3\n```"
    places = [page.index(text) for text in shown]
    assert places == sorted(places) and "<svg" in (tmp_path / "small-1.svg").read_text()
