"""The fixtures of these tests."""

from tests.support.model_files import cache, model

__all__ = ["cache", "model"]
