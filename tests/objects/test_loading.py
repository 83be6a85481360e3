"""What the package loads."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_loads_neither_obstore_nor_numpy() -> None:
    program = (
        "import sys, lastword.objects; print(sorted({'obstore', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
