"""The fixtures of these tests."""

from tests.support.lengths import model, spec

__all__ = ["model", "spec"]
