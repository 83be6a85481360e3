"""Decide which partitions, segments and groups are cleaned: plans, groups and runs as values."""
