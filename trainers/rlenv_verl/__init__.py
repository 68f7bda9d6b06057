"""Train policies on rlenv environments with unmodified veRL.

Importing this package is light: veRL, Ray and torch are imported by the modules that need them.
"""

from __future__ import annotations

VERL_RANGE = ">=0.9.1,<0.10"
"""The releases of veRL whose interface `tests/trainers/test_contract.py` covers."""
