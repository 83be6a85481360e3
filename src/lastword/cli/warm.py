"""`lastword warm`: compile the kernels of lastword."""

from __future__ import annotations

import time

from lastword.cli.command import Session, command
from lastword.units import format_bytes
from lastword.values import plural


@command("warm", usage="")
def warm(out: Session) -> None:
    """Compile all kernels into the cache folder, once.

    Use it in the RUN step of a container image, or before the first use. Commands that count, clean or
    restore otherwise compile missing kernels themselves. The folder is LASTWORD_CACHE_DIR, else lastword in
    the user's cache directory; it is valid for one version of lastword, NumPy and Python, and for one type
    of processor.

    Examples:
        lastword warm
        LASTWORD_CACHE_DIR=/opt/lastword-cache lastword warm
    """
    began = time.monotonic()
    from lastword.kernels import warming
    from lastword.kernels.native import cache_folder

    warming.warm()
    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.glob("*.o")]
    out.summary(
        f"{plural(len(sizes), 'file')} of compiled kernels, {format_bytes(sum(sizes))}, in {folder}",
        folder=str(folder),
        files=len(sizes),
        size_bytes=sum(sizes),
        seconds=round(time.monotonic() - began, 3),
    )
