"""Intervals, tests and sample sizes for episodes of which several are of one task; each with its source."""
