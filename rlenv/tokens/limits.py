"""How many tokens a trajectory may have."""

from __future__ import annotations

from dataclasses import dataclass

from rlenv.errors import EpisodeError
from rlenv.tokens.cut import Keep

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The room of a trajectory, in tokens; None: no limit. See `TokenEncoder.start`."""

    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    max_total_tokens: int | None = None
    max_observation_tokens: int | None = None
    keep: Keep = "head_tail"

    def check_prompt(self, length: int) -> None:
        """Passes where a prompt of `length` tokens fits.

        Raises:
            EpisodeError: it does not; `reason` is "prompt_tokens" or "total_tokens".
        """
        if self.max_prompt_tokens is not None and length > self.max_prompt_tokens:
            raise EpisodeError(
                f"the prompt has {length} tokens; expected at most {self.max_prompt_tokens} (max_prompt_tokens)",
                reason="prompt_tokens",
            )
        if self.max_total_tokens is not None and length >= self.max_total_tokens:
            raise EpisodeError(
                f"the prompt has {length} tokens; expected fewer than {self.max_total_tokens} (max_total_tokens)",
                reason="total_tokens",
            )

    def of_response(self, prompt_length: int) -> tuple[int | None, str]:
        """The tokens that a response may have in all, and which limit that is: "response" or "total"."""
        limit = self.max_response_tokens
        if self.max_total_tokens is not None:
            total = self.max_total_tokens - prompt_length
            if limit is None or total < limit:
                return total, "total"
        return limit, "response"
