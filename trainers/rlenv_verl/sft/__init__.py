"""`rlenv sft`: a policy started on supervised rows, by veRL's own trainer, unmodified; and the same loss without it."""
