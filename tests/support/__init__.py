"""Helpers of several test packages and the benchmarks, such as a real Kafka (`kafka.py`)."""
