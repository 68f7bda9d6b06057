"""Threads that may be left behind, processes that can be killed, timeouts, scopes, and lanes of what leaves one."""
