"""Shared ground of every part, which no user types: bounds, JSON, paths, spellings, quick records; knows nothing of
rlenv.
"""
