"""The benchmarks' own programs, at sizes that take a second."""
