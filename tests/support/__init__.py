"""Shared by several test packages and the benchmarks: a real Kafka, fetched and driven (`kafka.py`)."""
