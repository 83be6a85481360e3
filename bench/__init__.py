"""Named workloads, each beside a rival that is measured in the same run. `run.py` is `make bench`."""
