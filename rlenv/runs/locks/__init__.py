"""The causes of an episode, by content, and the differences between those of two."""
