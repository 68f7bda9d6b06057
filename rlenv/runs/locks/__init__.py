"""What made an episode, by content, and where two of these differ."""
