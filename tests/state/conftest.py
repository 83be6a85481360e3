from tests.api.conftest import clock, logs  # noqa: F401  the same directory, the same clock
