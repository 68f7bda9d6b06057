"""See the modules: one family of rules each."""
