"""Amounts of money as whole cents."""


def cents(text):
    """The cents of an amount such as "3.50"."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(part or 0)


def total(amounts):
    """The sum of several amounts, in cents."""
    return sum(cents(amount) for amount in amounts)
