"""Token-exact trajectories: what was sampled is kept, what the environment says is encoded as the template would."""

from __future__ import annotations

from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.images import ProcessorImages
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.trajectory import TokenTrajectory

__all__ = ["ProcessorImages", "TokenEncoder", "TokenRows", "TokenTrajectory"]
