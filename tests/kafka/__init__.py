"""Tests with a real Kafka broker, its clients and its tools; skipped where the broker cannot run."""
