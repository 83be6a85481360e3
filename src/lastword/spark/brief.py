"""Errors as a user of Spark sees them: the sentence and its remedy.

Spark puts the traceback of whatever its Python processes raise into its own exception. Of an error of this
package the sentence says what is wrong, where, and what to do; the frames between the method that Spark
called and the line that noticed it would only hide it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lastword.errors import LastwordError

Method = TypeVar("Method", bound=Callable[..., Any])


def brief(method: Method) -> Method:
    """For methods that Spark calls: a LastwordError comes out of it, or out of the iterator that it gives,
    as if it had been raised here."""

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            answer = method(*given, **named)
        except LastwordError as error:
            raise error.with_traceback(None) from None
        return _each(answer) if isinstance(answer, Iterator) else answer

    return call  # type: ignore[return-value]


def _each(answer: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from answer
    except LastwordError as error:
        raise error.with_traceback(None) from None
