"""Threads that may be left behind, timeouts that hold, and scopes of what a process shares."""
