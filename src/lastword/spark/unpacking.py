"""The one function that travels to workers as code: it reports what is missing where lastword is absent. So
it imports nothing of this package at module level.
"""

MISSING = "lastword of the driver"
"""The beginning of the message, by which the driver recognizes it."""


def unpack(packed: bytes, version: str) -> object:
    """Return what `bootstrap.Shipped` packed. ImportError with a remedy where this Python cannot run it."""
    import pickle
    import socket
    import sys

    where = f"{sys.executable} on {socket.gethostname()}, which runs Spark's tasks"
    fix = (
        f"\n  fix: install lastword {version} for that Python, from where the driver has it, "
        "or set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has it"
    )
    try:
        import lastword

        if lastword.__version__ == version:
            kind, state = pickle.loads(packed)
            from lastword.spark.bootstrap import settle

            settle()
            made = kind.__new__(kind)
            made.__dict__.update(state)
            return made
    except ImportError as error:
        raise ModuleNotFoundError(
            f"lastword of the driver ({version}) cannot be loaded by {where}: {error}{fix}"
        ) from None
    raise ImportError(
        f"lastword of the driver is {version}, and {lastword.__version__} is installed for {where}{fix}"
    )
