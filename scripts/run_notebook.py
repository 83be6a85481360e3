"""Execute a notebook without a Jupyter kernel, and write it as Markdown with its outputs and pictures.

    python scripts/run_notebook.py examples/state.ipynb FOLDER

FOLDER gets `state.md` and `state-1.svg`, `state-2.svg` and so on. The site shows them; the repository has
the notebooks without outputs. The cells run in the working directory.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def _run_cell(source: str, variables: dict[str, Any], name: str) -> tuple[str, Any]:
    """Run one cell; return the text that it printed and the value of its last expression, as Jupyter does."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), name, "exec"), variables)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), variables)
    return printed.getvalue(), value


def run_notebook(notebook: Path, folder: Path) -> None:
    """Write the page and the pictures of an executed notebook into a folder."""
    os.environ["MPLBACKEND"] = "Agg"
    import matplotlib.pyplot as plt

    plt.show = lambda: None
    variables: dict[str, Any] = {}
    lines: list[str] = []
    pictures = 0
    for number, cell in enumerate(json.loads(notebook.read_text("utf-8"))["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        printed, value = _run_cell(source, variables, f"{notebook.name}, cell {number}")
        if value is not None and not hasattr(value, "_repr_html_"):
            printed += repr(value)
        if printed.strip():
            lines += ["```text", printed.rstrip(), "```", ""]
        if hasattr(value, "_repr_html_"):
            lines += [value._repr_html_(), ""]
        for figure in map(plt.figure, plt.get_fignums()):
            pictures += 1
            figure.savefig(folder / f"{notebook.stem}-{pictures}.svg", facecolor="white")
            lines += [f"![Picture {pictures}]({notebook.stem}-{pictures}.svg)", ""]
        plt.close("all")
    (folder / f"{notebook.stem}.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    run_notebook(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
