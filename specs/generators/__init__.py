"""Generators of the data that ships: each module's `files()` gives file contents by path."""
