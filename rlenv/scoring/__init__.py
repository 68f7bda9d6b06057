"""Turns the terms of a spec into one reward: R = Σ wᵢ·rᵢ over the valid terms of an episode.

A term is valid (a number), invalid (it could not be measured) or skipped (its gate was shut, or there was nothing to
measure). Nothing that goes wrong here becomes a number. How a failure is attributed, and where:

- What a term raises makes that term invalid, in the words of an `EpisodeError` and as an author's exception otherwise
  (`measure.of_error`). Nothing that a term raises leaves here but the cancellation of the whole episode.
- What a term gives makes it invalid where it is no finite number, or none times its weight (`measure.of_value`).
- A term that is not measured within the limit, or cancels itself, is invalid (`measure.Running`).
- A term with `when: turn` is invalid where one of its turns is, and names it (`measure.over_turns`).
- A group's function that fails makes its term invalid for all answers of the group (`measure.measure_group`).
- A gate over an invalid term makes its own term invalid, unless its other comparisons decide it (`Scorer.score`).
- An invalid term that is required makes the reward invalid, and the episode fails (`rlenv.trajectory`); one with
  `on_invalid: raise` stops the run (`InvalidReward`).
- An episode that failed before it was scored has every term invalid, each with the episode's failure (`Scorer.failed`).
"""

from rlenv.scoring.scorer import Scorer

__all__ = ["Scorer"]
