"""Erasure in a bucket: no object of the store and no private copy holds a key or an old value afterwards."""

from __future__ import annotations

import base64
import json
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lastword
from tests.api.test_erase import left_in


def strings_in(value: Any) -> Iterator[bytes]:
    """Yield every text in a JSON value as bytes, and what it stands for if it is Base64."""
    for part in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        for text in part:
            yield from strings_in(text)
    if isinstance(value, str):
        yield value.encode()
        with suppress(ValueError):
            yield base64.b64decode(value)


def objects_with(logs: lastword.LogDir, wanted: list[bytes], path: Path) -> set[str]:
    """Return the objects of the store that hold one of these byte strings; `path`: a directory for copies.

    The manifest and its pages are compressed, and hold small files as Base64 in JSON.
    """
    store, found = logs.dirs._bucket.store, set()  # type: ignore[attr-defined]
    for facts in store.list(""):
        data = bytes(store.get(facts.key).data)
        (path / "object.log").write_bytes(data)
        parts = [data]
        with suppress(zlib.error):
            parts += strings_in(json.loads(zlib.decompress(data).split(b"\n", 1)[-1]))
        if left_in(path, wanted) or any(each in part for part in parts for each in wanted):
            found.add(facts.key)
    return found


@pytest.mark.parametrize("now", [True, False])
def test_no_object_holds_the_keys_or_their_values(
    opened: Callable[..., lastword.LogDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    copies = tmp_path / "objects"
    copies.mkdir()
    rng = random.Random(5)
    keys = [rng.randbytes(16) for _ in range(400)]
    old: list[bytes] = []
    logs = opened()
    topic = logs.create_topic("users", cleanup_policy="compact", segment_bytes=200_000)
    for number in range(6):
        values = [rng.randbytes(32) for _ in keys]
        old += values[:2]
        topic.extend(list(zip(keys, values, strict=True)))
        if number == 3:
            logs.clean()
    assert objects_with(logs, old, copies)
    done = topic.erase(keys[:2], now=now)
    assert done.complete is now
    assert (done.waiting_objects == 0) is now
    if not now:
        assert done.waiting_until_ms > done.ended_ms
        assert objects_with(logs, old, copies)
        logs.collect(retention=0)
        done = topic.erase(keys[:2], now=True)
        assert done.complete, (done.waiting_objects, done.partitions[0].copies[:3])
    assert objects_with(logs, [*old, *keys[:2]], copies) == set()
    assert topic.get(keys[5]) is not None
    logs.close()
    assert left_in(scratch, [*old, *keys[:2]]) == set()
