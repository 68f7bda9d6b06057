"""One module a side; see `benchmarks/workload.py`."""
