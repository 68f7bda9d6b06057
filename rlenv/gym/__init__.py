"""Gymnasium's face: environments over text, and the names under which they are registered."""
