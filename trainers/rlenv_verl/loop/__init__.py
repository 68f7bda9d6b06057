"""What veRL runs for each sample, and what its replay buffer counts of them: one episode of rlenv each."""
