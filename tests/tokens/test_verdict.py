"""One verdict says whether an environment can be trained with a template, and whether exactly."""

from __future__ import annotations

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.verdict import Played, judge
from tests.tokens.test_rows import FORGETS

PROMPT = (Message("system", "S"), Message("user", "Q"))


def test_a_template_that_only_grows_will_run_and_is_exact() -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
    verdict = judge(encoder, Played(PROMPT, answers=(("tool",), ("user",))))
    assert verdict.will_run
    assert verdict.is_exact
    assert {situation.status for situation in verdict.situations} == {"grows"}
    assert verdict.message == ""


def test_rewritten_history_stops_grow_is_inexact_for_keep_and_exact_in_rows() -> None:
    played = Played(PROMPT, answers=(("user",),))
    seen = {}
    for history in ("grow", "keep", "rows"):
        verdict = judge(TokenEncoder(small_tokenizer(), chat_template=FORGETS, history=history), played)
        seen[history] = (verdict.will_run, verdict.is_exact)
        assert any(situation.status == "rewritten" for situation in verdict.situations)
    assert seen == {"grow": (False, False), "keep": (True, False), "rows": (True, True)}


def test_a_template_that_cannot_be_bound_is_a_verdict() -> None:
    def make() -> TokenEncoder:
        raise UnsupportedTemplate("chat template x cannot be used")

    verdict = judge(make, Played(PROMPT))
    assert not verdict.will_run
    assert verdict.message == "chat template x cannot be used"
