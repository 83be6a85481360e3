"""A reader in its own process, without a lock: it gets a directory and a topic and returns the records."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType

_READER = """
import json, sys
import lastword
for line in sys.stdin:
    directory, topic = json.loads(line)
    with lastword.open(directory) as logs:
        records = list(logs.topic(topic).read())
    found = [[r.offset, r.key.decode(), None if r.value is None else r.value.decode()] for r in records]
    print(json.dumps(found), flush=True)
"""


class OtherProcess:
    """A reader process; `read(directory, topic)` returns its records as [[offset, key, value], ...]."""

    def __enter__(self) -> OtherProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def read(self, directory: str, topic: str) -> list[list]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([directory, topic]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the reader ended"
        return json.loads(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
