#!/usr/bin/env bash
# An object in obstore's memory store changes after the put, when the caller uses its buffer again.
#
# Guess: put() returns when the object is stored. What the caller does with its buffer afterwards changes nothing, as with
#   obstore's store of local files, and a stored object that changes has another ETag.
# Versions: obstore 0.12.1, Python 3.11.
# Behaviour: the memory store keeps the caller's buffer and does not copy it. A writer that fills one bytearray again and
#   again changes every object that it has put; their ETags and times stay. A memoryview does the same. bytes are safe, and
#   so is an iterator of buffers, which is copied. While the object exists, the bytearray cannot change its size.
# Output seen (2026-11-29):
#   memory: put b'first', now b'other', same ETag: True
#   local files: put b'first', now b'first', same ETag: True
#   memory, from an iterator: put b'first', now b'first', same ETag: True
#   a new size of the buffer: BufferError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the package cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1 || exit 2
mkdir "$work/objects"
said=$("$work/venv/bin/python" - "$work/objects" <<'PY'
import sys
from obstore.store import LocalStore, MemoryStore

def show(name, store, given):
    buffer = bytearray(b"first")
    store.put("object", given(buffer))
    before = store.head("object")["e_tag"]
    buffer[:] = b"other"
    now, after = bytes(store.get("object").bytes()), store.head("object")["e_tag"]
    print(f"{name}: put b'first', now {now}, same ETag: {before == after}")
    return buffer

buffer = show("memory", memory := MemoryStore(), lambda buffer: buffer)
show("local files", LocalStore(sys.argv[1]), lambda buffer: buffer)
show("memory, from an iterator", MemoryStore(), lambda buffer: iter([buffer]))
try:
    buffer.extend(b"!")
    print("a new size of the buffer: taken")
except BufferError:
    print("a new size of the buffer: BufferError")
PY
) || exit 2
echo "$said"
[ "$said" = "memory: put b'first', now b'other', same ETag: True
local files: put b'first', now b'first', same ETag: True
memory, from an iterator: put b'first', now b'first', same ETag: True
a new size of the buffer: BufferError" ]
