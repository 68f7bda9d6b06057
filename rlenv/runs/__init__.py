"""Recorded episodes: files, replay, scoring again, and their summary."""
