"""The settings of a run by their source: preset files, the shell's variables, and this machine's processor."""
