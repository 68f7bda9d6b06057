"""The rows of a split: files, lists, and datasets of the hub."""
