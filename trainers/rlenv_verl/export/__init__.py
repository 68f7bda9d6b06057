"""The contents of veRL's checkpoints, and a policy made of one."""
