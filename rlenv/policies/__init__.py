"""Policies that act in `eval` and `play`: oracles, endpoints, scripts and chance."""
