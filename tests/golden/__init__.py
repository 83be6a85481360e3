"""Directories that real Kafka wrote, as lastword reads and cleans them. Start at `loader.py`."""
