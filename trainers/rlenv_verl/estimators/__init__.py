"""All of rlenv's advantage estimators: importing this registers them, in any process that imports verl.

Named in `VERL_USE_EXTERNAL_MODULES`.
"""

from __future__ import annotations

import rlenv_verl.estimators.advantages  # noqa: F401
