"""A policy small enough to train on two CPU cores, made on the spot for one spec."""
