"""Who acts in `eval` and `play`: oracles, endpoints, scripts and chance."""
