"""The `rlenv` command: one module a subcommand."""
