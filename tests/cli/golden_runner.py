"""Run command scripts and compare the output with the script.

    $ lastword read data users          a command line, run in an empty directory of its own
    > {"key": "a", "value": "b"}        lines of its stdin
    ---
    0:0  2026-11-20 10:00:00Z  a  b     its stdout
    ! error: ...                        its stderr
    [exit 2]                            its exit code, unless 0

The clock starts at 2026-11-20 10:00:00Z and advances by a second before each command; `$ advance 1d` advances
it further. `$ flip FILE POSITION` inverts all bits of a byte; `$ cut FILE BYTES` removes bytes from the end
of a file; `$ begin DIR TOPIC PRODUCER` appends a record of a transaction that stays open;
`$ commit DIR GROUP TOPIC PARTITION OFFSET` appends a position of a group. Lines before the first command, and
lines that begin with #, are comments. LASTWORD_REWRITE=1 writes the actual output into the script.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lastword
from lastword.cli.command import CONTEXT
from lastword.cli.main import run
from lastword.clock import ManualClock
from lastword.objects import remote
from lastword.parse import parse_duration_ms
from tests.console.samples import commit
from tests.server.client import batch
from tests.support.damage import flip

BEGIN_MS = 1_795_168_800_000  # 2026-11-20 10:00:00Z

# Parts that differ from run to run: times of the machine, process ids, salted digests.
MASKS = (
    (re.compile(r'"(seconds|map|rewrite|swap)":[0-9.e-]+'), r'"\1":_'),
    (re.compile(r'"(key_offset_digest|content_digest)":"[0-9a-f]{16}"'), r'"\1":"_"'),
    (re.compile(r"keys [0-9a-f]{16}, contents [0-9a-f]{16}"), "keys _, contents _"),
    (re.compile(r"(topic_id|cluster\.id|directory\.id|topic_id\":)( = |)\"?[\w-]{22}\"?"), r"\1\2_"),
    (re.compile(r"the first until [0-9-]+ [0-9:.]+Z"), "the first until _"),
    (re.compile(r'"(next_due_ms|named_bytes)":\d+'), r'"\1":_'),
    (re.compile(r"(in use: \d+ objects?), [0-9.]+ \w+"), r"\1, _"),  # objects hold random names, compressed
    # Parquet files, whose size depends on the version of Arrow
    (re.compile(r"(would write \d+ rows? in|\d+ rewritten,) [0-9.]+ \w+"), r"\1 _"),
    (re.compile(r'("(?:files":\d+|table":"[^"]*"),"written_bytes"):\d+'), r"\1:_"),
    (re.compile(r"in use by (this )?process \d+( \([^)]*\))?"), "in use by process _"),
)


@dataclass
class Block:
    comments: list[str] = field(default_factory=list)
    command: str = ""
    stdin: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def parse(text: str) -> tuple[list[Block], list[str]]:
    """Return the blocks, and the comment lines after the last block."""
    blocks: list[Block] = []
    comments: list[str] = []
    state = "between"
    for line in text.splitlines():
        if line.startswith("$ "):
            blocks.append(Block(comments, line[2:]))
            comments, state = [], "command"
        elif state == "command" and line.startswith("> "):
            blocks[-1].stdin.append(line[2:])
        elif state == "command" and line == "---":
            state = "output"
        elif state == "output" and line:
            blocks[-1].expected.append(line)
        elif state == "output":
            state = "between"
        else:
            comments.append(line)
    return blocks, comments


def render(blocks: list[Block], rest: list[str]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += [*block.comments, f"$ {block.command}", *(f"> {line}" for line in block.stdin)]
        lines += ["---", *block.expected, ""]
    return "\n".join([*lines, *rest]).rstrip("\n") + "\n"


def empty_stores(monkeypatch: Any) -> None:
    """Empty the stores of memory:// for a test."""
    monkeypatch.setattr(remote, "_memory", {})


@contextmanager
def copied_stores() -> Iterator[None]:
    """Use copies of the stores of memory:// meanwhile, so that they stay as they are."""
    import obstore
    from obstore.store import MemoryStore

    stores = remote._memory
    remote._memory = {name: MemoryStore() for name in stores}
    for name, copy in remote._memory.items():
        for facts in obstore.list(stores[name]).collect():
            obstore.put(copy, facts["path"], obstore.get(stores[name], facts["path"]).bytes())
    try:
        yield
    finally:
        remote._memory = stores


def execute(block: Block, clock: ManualClock) -> list[str]:
    """Return the masked output of one command."""
    words = shlex.split(block.command)
    clock.advance(1000)
    if words[0] == "advance":
        clock.advance(parse_duration_ms(words[1]))
        return []
    if words[0] == "flip":
        path, position = Path(words[1]), int(words[2])
        flip(path, position, 0xFF)
        return []
    if words[0] == "begin":
        with lastword.open(words[1], "a", clock=clock) as logs:
            producer = int(words[3]), 0, 0
            data = batch((b"k", b"v"), attributes=0x10, producer=producer, timestamp=clock.now_ms())
            logs.dirs.log(words[2], 0).append_batch(data)
        return []
    if words[0] == "commit":
        with lastword.open(words[1], "a", clock=clock) as logs:
            commit(logs, {(words[2], words[3], int(words[4])): int(words[5])})
        return []
    if words[0] == "cut":
        path = Path(words[1])
        path.write_bytes(path.read_bytes()[: -int(words[2])])
        return []
    assert words[0] == "lastword", block.command
    out, err = _Stream(), _Stream()
    stdin, sys.stdin = (
        sys.stdin,
        io.TextIOWrapper(io.BytesIO("".join(f"{x}\n" for x in block.stdin).encode())),
    )
    CONTEXT.clock = clock
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run([part for word in words[1:] for part in _globbed(word)])
    finally:
        sys.stdin = stdin
        CONTEXT.clock = None
    messages = [line for line in err.getvalue().splitlines() if not line.startswith("compiling kernels")]
    lines = out.getvalue().splitlines() + [
        f"! {line}" for line in messages
    ]  # a cold cache is of no importance
    if code:
        lines.append(f"[exit {code}]")
    return [_masked(line) for line in lines]


class _Stream(io.StringIO):
    def isatty(self) -> bool:
        return False


def _globbed(word: str) -> list[str]:
    if "*" not in word:
        return [word]
    return sorted(str(path) for path in Path().glob(word))


def _masked(line: str) -> str:
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line.rstrip()
