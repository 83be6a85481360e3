"""A salted hash of each of many spans: keys as numbers, for samples and estimates."""

from __future__ import annotations

from lastword.kernels import NO_SLACK, OK, SLACK, kernel
from lastword.kernels.keyhash import NULL_KEY, key_hash


@kernel
def hash_spans(source, position, length, seed0, seed1, hashes):
    """hashes[i] (uint64) = `key_hash` of source[position:position + length]; of a null span `NULL_KEY`."""
    for i in range(position.size):
        size = length[i]
        if size < 0:
            hashes[i] = NULL_KEY
            continue
        at = position[i]
        if at < 0 or size > source.size - SLACK - at:
            return NO_SLACK
        hashes[i] = key_hash(source, at, size, seed0, seed1)
    return OK
