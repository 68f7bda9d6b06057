"""Functions that the planted specs name."""


def clock(zone: str) -> str:
    """Tell the time.

    Args:
        zone: where.
    """
    return zone


def score(context):
    """A term."""
    return 1.0


def rows():
    """Rows."""
    return [1, 2]


NUMBER = 3
