"""Every batch verb on Sail, a server of Spark Connect without a JVM, compared with a dict and the library.

    python -m tests.spark.sail

Sail needs another PySpark than ours, so it runs in a virtual environment of its own below `build`, which
`main` builds: `sail_all.py` is the program there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAIL_VERSION = "0.7.2"
CLIENT_VERSION = "4.2.0"
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / f"sail-{SAIL_VERSION}" / "bin" / "python"


def build() -> None:
    """Make the virtual environment, once."""
    if PYTHON.exists():
        return
    directory = PYTHON.parents[1]
    wanted = [f"pysail=={SAIL_VERSION}", f"pyspark-client=={CLIENT_VERSION}", "pandas<3", "pytest"]
    try:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run(
            [PYTHON, "-m", "pip", "install", "-q", *wanted, "-e", f"{ROOT}[avro,lake]"], check=True
        )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def main() -> int:
    """Run every verb; return 1 if one fails."""
    build()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as home:
        program = [PYTHON, "-m", "tests.spark.sail_all", home]
        return subprocess.run(program, cwd=ROOT, env={**environment, "RUST_LOG": "error"}).returncode


if __name__ == "__main__":
    sys.exit(main())
