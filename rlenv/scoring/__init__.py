"""Turns the terms of a spec into one reward."""
