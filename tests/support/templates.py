"""Chat templates with a habit, made from the small one."""

from __future__ import annotations

from rlenv.testing.tokens import CHAT_TEMPLATE

# Drops earlier thinking where the last message is a user's.
FORGETS = CHAT_TEMPLATE.replace(
    "(message.content or '')",
    "((message.content or '').split('</think>')[-1] if messages[-1].role == 'user' else (message.content or ''))",
)
