"""Benchmarks: named workloads, each beside a rival measured in the same run. `run.py` is `make bench`."""
