"""All of rlenv's advantage estimators: importing this registers them, in any process that imports verl.

Named in `VERL_USE_EXTERNAL_MODULES`.
"""

from __future__ import annotations

import rlenv_verl.advantage
import rlenv_verl.baselines
import rlenv_verl.turn_advantages  # noqa: F401
