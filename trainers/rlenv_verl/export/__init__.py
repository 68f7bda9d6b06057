"""What veRL's checkpoints hold, and a policy made of one."""
