"""What several test packages and the benchmarks share: real Kafka, fetched and driven. See `kafka.py`."""
