"""The agent loop that veRL runs for each sample, one episode of rlenv each, and its replay buffer."""
