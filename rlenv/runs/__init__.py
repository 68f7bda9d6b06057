"""Runs that are kept: their folders, locks, tapes and figures; files of episodes, replay and scoring again."""
