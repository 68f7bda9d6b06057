"""The encoder of each kind of small template."""

from __future__ import annotations

from rlenv.tokens import TokenEncoder
from rlenv.tokens.encoder import History
from tests.tokens.kinds import _VALUES, Kind, tokenizer


def bound(kind: Kind, history: History = "grow") -> TokenEncoder:
    ends = [tokenizer().token_to_id(mark) for mark in kind.ends]
    return TokenEncoder(
        tokenizer(),
        chat_template=kind.source,
        template_kwargs={**_VALUES, **kind.values},
        end_ids=ends,
        history=history,
    )
