"""The figures of a run of episodes: rows of one version, the query over them, and every figure drawn from them."""
