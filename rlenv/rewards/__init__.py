"""Terms of a reward: rules, verifiers, judges, functions of one's own; and the scorer that makes one number of them."""
