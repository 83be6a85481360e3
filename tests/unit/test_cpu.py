"""The tables of CPU seconds mark each folder and each part above its budget, and each has a budget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import part
from tests.support.cpu import budgets, lines, of_machine
from tests.support.linux import linux_only

ROOT = Path(__file__).parents[2]


def test_a_folder_above_its_budget_is_marked() -> None:
    spent = {
        "tests/a/test_x.py::test_1": 3.0,
        "tests/a/test_x.py::test_2": 2.5,
        "tests/b/test_y.py::test": 4.0,
    }
    table = lines(spent, {"tests/a": 5, "tests/b": 5})
    assert table[0] == "CPU seconds of 3 tests: 10"
    assert [line.split() for line in table[1:3]] == [
        ["tests/a", "5.5", "2", "tests", "budget", "5", "ABOVE"],
        ["tests/b", "4.0", "1", "tests", "budget", "5"],
    ]
    assert table[4].split() == ["4.0", "tests/b/test_y.py::test"]


def test_the_seconds_of_the_machine_are_all_in_one_kind() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    text = " ".join(str(ticks << place) for place in range(len(names)))
    machine = of_machine(f"cpu  {text} 0 0\ncpu0 1 1 1\n")
    assert machine == {"busy": 1 + 2 + 4 + 32 + 64, "idle": 8 + 16, "stolen": 128}


def test_every_folder_with_tests_and_every_part_of_the_engines_has_a_budget() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")}
    makefile = (ROOT / "Makefile").read_text()
    parts = set(re.findall(r"^([a-z-]+):.*\n\t@\$\(PART\) \$@ ", makefile, re.MULTILINE))
    assert len(parts) == 3 and set(budgets(ROOT / "pyproject.toml")) == folders | parts


BUSY = "import time\nwhile time.process_time() < {seconds}: pass\n"
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {orphan!r}, "org.apache." + "spark.Main"], stdin=subprocess.DEVNULL)
sys.exit(3)
"""


@linux_only
def test_a_part_counts_a_process_that_outlives_the_one_that_started_it() -> None:
    """Its time is in the sum and in the line of its kind, and the exit code is that of the command."""
    program = PARENT.format(orphan=BUSY.format(seconds=1.3))
    command = [sys.executable, "-m", "tests.support.part", "test-spark", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first, *rows = done.stdout.splitlines()
    assert done.returncode == 3, done.stderr
    assert int(re.fullmatch(r"CPU seconds of test-spark: (\d+)  budget \d+", first)[1]) >= 1  # type: ignore[index]
    (spark,) = [row.split() for row in rows if "JVMs of Spark" in row]
    assert float(spark[3]) > 0.5 and spark[4:] == ["1", "processes"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("/usr/bin/java -Xmx512m -cp /c/kafka-4.4.0/*:/c/b.jar Brokers ", "brokers of Kafka"),
        ("/usr/bin/java -Xmx512m -cp /c/kafka-4.4.0/*:/c/t.jar Tools ", "other JVMs of Kafka"),
        ("/usr/bin/java -cp /c/jars/* org.apache.spark.deploy.SparkSubmit pyspark-shell ", "JVMs of Spark"),
        ("/usr/bin/java -jar /c/s3mock.jar ", "other JVMs"),
        ("/v/bin/python -m pyspark.daemon pyspark.worker ", "Python of Spark"),
        ("/v/bin/python -m pytest -m beside tests/spark ", "pytest"),
        ("/v/bin/python -m lastword serve s3://bucket/shop ", "other programs"),
    ],
)
def test_the_kind_of_a_process(command: str, kind: str) -> None:
    assert part.kind_of(command) == kind


def test_a_part_above_its_budget_is_marked() -> None:
    samples = part.Samples()
    assert part.lines("p", 7.4, samples, 8) == [
        "CPU seconds of p: 7  budget 8",
        "  between two samples           7.4",
    ]
    assert part.lines("p", 8.6, samples, 8)[0] == "CPU seconds of p: 9  budget 8  ABOVE"
