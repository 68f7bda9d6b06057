"""`rlenv view`: runs in a browser, served from this machine to its user alone."""
