"""The parts that veRL needs to run on CPUs: for tests and first runs. A GPU needs none of them.

Everything here goes through veRL's registries where it has one; each workaround says what was expected, what happens
instead in veRL 0.9.1, where, and when it can be removed.
"""
