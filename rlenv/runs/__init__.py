"""Runs that are kept: their folders, locks, events and figures; files of episodes, replay and scoring again."""
