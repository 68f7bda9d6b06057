"""Simulated users that tell the answer when they are asked for it, or are content with kind words.

What is said are the usual words of asking, thanking and giving up, and those that the user's own cues or code look for.
What a user replies is a place to be read like others, but for what the oracle hears of it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlenv.audit.asking import ask_user
from rlenv.audit.crafted import example_of, words_in_code
from rlenv.audit.leaks import Aim, aim_of
from rlenv.audit.place_rules import holds, learn
from rlenv.audit.play import Chapter, Leak, Player
from rlenv.audit.subject import Action, Subject
from rlenv.audit.words import shrug
from rlenv.episodes.environment import Environment
from rlenv.trajectory import Trajectory

__all__ = ["spoken_texts", "talk_to_user"]

_ASKS = (
    *("Please give me a hint.", "What is the answer? Please tell me the solution.", "I give up.", "Is that right?"),
    *("Could you repeat that, please?", "I am sorry. I apologise.", "Thank you very much, you are so kind!"),
    "It is done, everything is settled. Are you happy with it?",
)
_MOST_TEXTS = 20
_FEW_TEXTS = 6
_MOST_TURNS = 6
_ASKED = 16


def spoken_texts(environment: Environment) -> list[str]:
    """What is said to the user of a spec; [] where there is none, and but a few texts where a model answers them."""
    user = environment.spec.user
    if user is None:
        return []
    if user.kind == "model":
        return list(_ASKS[:_FEW_TEXTS])
    cues = [text for cue in getattr(user, "cues", ()) for text in example_of(cue.when)]
    words = words_in_code(environment, "user.function", getattr(user, "function", None))
    return list(dict.fromkeys([*_ASKS, *cues, *words]))[:_MOST_TEXTS]


async def talk_to_user(player: Player, chapter: Chapter, subjects: Sequence[Subject]) -> None:
    """Says each text to the user; what came of it stands in `chapter.tried`."""
    texts = spoken_texts(player.environment)
    if not texts:
        return
    turns = min(player.environment.spec.limits.turns, _MOST_TURNS)
    some, aim = subjects[:_ASKED], aim_of(subjects)
    for text in texts:
        way = await player.way(some, partial(_says, texts=[text], turns=turns))
        chapter.tried["talk"].append((text, way))
        if aim is not None and aim.is_answer:
            await _copies(player, chapter, some, text, aim, [way[one.gold.split, one.gold.task_index] for one in some])
    for said in (texts, [" ".join(texts)]):
        way = await player.way(some, partial(_says, texts=said, turns=turns))
        chapter.tried["talk"].append(("one thing after the other" if said is texts else "all of it at once", way))
    if player.environment.spec.user is not None and player.environment.spec.user.kind != "model":
        chapter.tried["asked_until_right"].append(("the user", await player.way(some, ask_user)))


def _says(subject: Subject, *, texts: Sequence[str], turns: int) -> list[Action]:
    own = {turn.action.strip() for turn in subject.gold.turns}
    said: list[Action] = [texts[turn % len(texts)] for turn in range(max(turns - 1, 1))]
    return [] if own & set(texts) else [*said, shrug(subject.asked)]


async def _copies(
    player: Player, chapter: Chapter, subjects: Sequence[Subject], text: str, aim: Aim, heard: Sequence[Trajectory]
) -> None:
    replies = ["\n".join(_replies(ended)) for ended in heard]
    known = ["\n".join(_replies(one.gold)) for one in subjects]
    golds = list(aim.golds[: len(subjects)])
    open_to_all = [
        reply if not holds(own, gold) else "" for reply, own, gold in zip(replies, known, golds, strict=True)
    ]
    sure = learn(open_to_all, golds)
    if sure is None:
        return
    taken = {one.gold.task_index: sure.taken.get(at, "?") for at, one in enumerate(subjects)}
    leak = Leak(f"reply of the user to {text!r}", sure.rule, sure.taken, sure.hits)

    def copies(subject: Subject) -> list[Action]:
        return [text, *aim.write(subject, taken[subject.gold.task_index])]

    chapter.tried["told"].append((leak, await player.way(subjects, copies)))


def _replies(ended: Trajectory) -> list[str]:
    """What the user said in answer to an action without calls."""
    shown = [turn.observation for turn in ended.turns if turn.observation is not None and not turn.results]
    return [message.content for one in shown for message in one.messages if message.role == "user"]
