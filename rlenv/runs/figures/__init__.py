"""What a run of episodes says: rows of one version, the query over them, and every figure drawn from them."""
