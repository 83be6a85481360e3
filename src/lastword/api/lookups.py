"""`KeyLookups`: the newest values of keys, as methods of a topic. `lastword.api.keys` finds them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any, Generic

from lastword.api.record import K, Record, V
from lastword.api.topic_views import TopicViews


@cache
def _keys() -> ModuleType:
    """Return `lastword.api.keys`, which a program that only appends does not load."""
    from lastword.api import keys

    return keys


class KeyLookups(TopicViews, Generic[K, V]):
    """The part of a topic that looks up keys."""

    def get(self, key: K, default: Any = None, *, partition: int | None = None) -> Any:
        """Return the newest value of a key, or `default` if it has none or was deleted.

        A compacted topic has an index for it. In a bucket a cleaning saves it where it pays; else it is in
        memory: see `lastword.key.index`. A value that expires counts until its tombstone is appended, as
        for `newest`.

        Args:
            key: The key.
            default: Returned for a key without a value.
            partition: Look in this partition alone. None: in that of the partitioner, then in the others.

        Raises:
            SerializerError: The topic's serializer refuses the key, or cannot read the value.
            KeyRequiredError: The key is None.
        """
        keys = _keys()
        found = keys.find_one(self, keys.key_bytes(self, key), partition)
        if found is None or found[1].value is None:
            return default
        return self._schema.value.decode(found[1].value, "value")

    def get_record(self, key: K, *, partition: int | None = None) -> Record[K, V] | None:
        """Return the newest record of a key, or None if it has no value or was deleted; as `get`."""
        from lastword.api.reader import decoded

        keys = _keys()
        found = keys.find_one(self, keys.key_bytes(self, key), partition)
        if found is None:
            return None
        return decoded(found[1], self.name, found[0], self._schema.key, self._schema.value)

    def get_many(self, keys: Iterable[K], *, partition: int | None = None) -> dict[K, V]:
        """Return the newest values of many keys, without the keys that have none.

        One moment for all keys of a partition: its last stable offset, taken before the first lookup.
        """
        from lastword.api.keys import find, keys_by_bytes

        named = keys_by_bytes(self, keys)
        decode = self._schema.value.decode
        return {
            named[data]: decode(record.value, "value")
            for _, records in find(self, named.keys(), partition)
            for data, record in records.items()
            if record.value is not None
        }

    def get_records(self, keys: Iterable[K], *, partition: int | None = None) -> dict[K, Record[K, V]]:
        """Return the newest records of many keys, as `get_many`."""
        from lastword.api.keys import find, keys_by_bytes
        from lastword.api.reader import decoded

        named = keys_by_bytes(self, keys)
        serializers = self._schema.key, self._schema.value
        return {
            named[data]: decoded(record, self.name, number, *serializers)
            for number, records in find(self, named.keys(), partition)
            for data, record in records.items()
        }

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a value, as `get`. TypeError and its like as from `append`."""
        keys = _keys()
        return keys.find_one(self, keys.key_bytes(self, key), None) is not None
