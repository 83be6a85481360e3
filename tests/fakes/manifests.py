"""Manifests in memory, under their nonces instead of their bytes, for histories of many commits.

To encode, compress and decode manifests takes half of the time of a history. Manifests, snapshots and the
entries of pages are immutable, so the processes of one history may share them. Two different manifests never
have the same bytes, and a read with bytes of two of them is damaged.
"""

from __future__ import annotations

from lastword.bucket import commit
from lastword.bucket.manifest import Layer, Manifest, ManifestVersion, PageRef, decode_page

Patches = tuple[tuple[object, str, object], ...]
"""Attributes to replace: object, name and value."""
_ENCODE = Manifest.encode


def in_memory(*known: ManifestVersion) -> Patches:
    """Return patches for one history. A test that plants another encoding keeps the bytes of that one.

    `known`: Versions that the history begins with, so that it shares what was read of them.
    """
    by_data: dict[bytes, Manifest] = {}
    of_nonce: dict[str, list[Manifest]] = {}
    snapshots = {id(snapshot.manifest): snapshot for snapshot in known}
    layers: dict[tuple[bytes, PageRef], Layer] = {}
    encode, decode = Manifest.encode, Manifest.decode

    def encode_once(manifest: Manifest) -> bytes:
        if encode is _ENCODE:
            same = of_nonce.setdefault(manifest.nonce, [])
            if manifest not in same:
                same.append(manifest)
            data = b"%s %d" % (manifest.nonce.encode(), same.index(manifest))
        else:
            data = encode(manifest)
        by_data[data] = manifest
        return data

    def decode_once(data: bytes, url: str) -> Manifest:
        manifest = by_data.get(data)
        if manifest is None:
            manifest = by_data[data] = decode(data, url)
        return manifest

    def snapshot_once(manifest: Manifest, pages: tuple[Layer, ...] = ()) -> ManifestVersion:
        snapshot = snapshots.get(id(manifest))
        if snapshot is None or snapshot.manifest is not manifest:
            snapshot = snapshots[id(manifest)] = ManifestVersion(manifest, pages)
        return snapshot

    def decode_page_once(data: bytes, url: str, page: PageRef) -> Layer:
        layer = layers.get((data, page))
        if layer is None:
            layer = layers[data, page] = decode_page(data, url, page)
        return layer

    return (
        (Manifest, "encode", encode_once),
        (Manifest, "decode", decode_once),
        (commit, "ManifestVersion", snapshot_once),
        (commit, "decode_page", decode_page_once),
    )
