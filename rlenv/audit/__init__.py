"""Attacks on the reward of a spec, before anything is trained on it; see `rlenv.audit.run`."""
