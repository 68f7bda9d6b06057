"""Where a run's settings come from: preset files, the shell's variables, and what this machine's processor can do."""
