"""The classes of Kafka's messages, e.g. `FetchRequest`; each is made at first use.

`messages.pyi` has their fields, for type checkers and editors.
"""

from __future__ import annotations

from typing import Any

from lastword.errors import UnsupportedVersionError
from lastword.protocol.schemas import message_class


def __getattr__(name: str) -> Any:
    try:
        kind = message_class(name)
    except UnsupportedVersionError as error:
        raise AttributeError(error.message) from None
    globals()[name] = kind
    return kind
