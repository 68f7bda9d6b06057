"""The `rlenv` command: its commands, and their options as records."""
