# An installed lastword brings these fixtures. In a checkout, the metadata of the installation may be older.
from lastword.testing.pytest_plugin import kafka_broker, logs  # noqa: F401
