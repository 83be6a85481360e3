"""Tests against one real Kafka broker, its clients and its tools. Where it can't be run they skip."""
