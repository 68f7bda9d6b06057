"""Threads that may be left behind, timeouts that hold, scopes of what a process shares, and lanes of what leaves it."""
