"""A tokenizer and a chat template, bound together once a process: exact token ids for prompts and observations."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Literal

from rlenv.dialects.base import SameTurn
from rlenv.errors import UnsupportedTemplate, UsageError
from rlenv.messages import Message
from rlenv.tokens import vocabulary
from rlenv.tokens.dummies import TOOL, USER, Marks, TurnShape
from rlenv.tokens.growth import AnsweredTurn, Growth
from rlenv.tokens.images import NoImages, ProcessorImages, Shown, as_template_reads
from rlenv.tokens.layouts import Deriver, Layout
from rlenv.tokens.prompt_ids import MAX_MESSAGES, Observations, PromptIds
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.shapes import Story, end_marks, words_of
from rlenv.tokens.trajectory import Limits, TokenTrajectory

__all__ = ["HISTORIES", "MAX_MESSAGES", "History", "TokenEncoder"]

History = Literal["grow", "keep", "rows"]
HISTORIES: tuple[History, ...] = ("grow", "keep", "rows")


class TokenEncoder:
    """Encodes what an environment says, exactly as the chat template and its tokenizer would.

    Observation ids are derived from the template, once for each sequence of roles: fixed ids for its structure and
    one encoding pass for each run of text that holds content. Content never becomes an added token. The prompt is
    rendered by the template and encoded with all its tokens, as serving does. Whether the template writes the turns
    before an observation as they were sampled is looked up by the shapes of these turns (`rlenv.tokens.growth`).
    Stateless after that, and shared by all trajectories of a process.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or any object with `backend_tokenizer`, as transformers' fast ones have.
        chat_template: the template's text; by default the tokenizer's own.
        template_kwargs: names for the template, such as `enable_thinking=False`; over a tokenizer's special tokens.
        stop: the token, or the tokens, that end an assistant's turn; found from the tokenizer and the template where it
            is None.
        end_ids: further ids that end an assistant's turn, as a model's `generation_config` names them; those of a
            tokenizer that has `end_ids` (`rlenv.tokens.bound`) are taken too.
        vocab_size: how many ids the model can sample, where its embeddings have more rows than the tokenizer has
            tokens; None: the tokenizer's.
        same_turn: what is written around contents that go on in the assistant's own turn, for an environment whose
            dialect has it (`Environment.same_turn`). The template then writes the prompt alone and is not told of
            tools, whose calls it would explain in its own way; no end mark is added behind what was sampled.
        images: what the policy's processor makes of images (`ProcessorImages`); None for a policy that reads text
            alone, which messages with images are refused for.
        history: what to do where the template would write earlier turns otherwise (Qwen3 drops thinking at a new user
            turn): "grow" refuses the template there, "keep" goes on with the ids as they were sampled and says so in
            `TokenTrajectory.differences`, "rows" starts a new row (`start_rows`).
        thinking: the marks around thinking that the policy writes, beside those that the template shows.

    Attributes:
        end_ids: every id that ends an assistant's turn: those given, the tokenizer's end token, and the mark that the
            template writes behind calls and behind answers, where it stands inside no turn.
        closing_ids: those of them that close a call themselves (Apertus), and so stay in the text of a turn.
        stop, stop_id: the mark behind calls (behind answers where the template takes no results).
        remarks: what is odd about end marks, in words; () where nothing is.
        begins: the marks that an assistant's turn begins with.

    Raises:
        UnsupportedTemplate: exact ids for tool results cannot be promised, and neither for user messages; the message
            names the template and the place. A template that supports one of the two is refused at the other only.
        UsageError: there is no template, or the tokenizer is not a fast one, or knows no text.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] | None = None,
        end_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        same_turn: SameTurn | None = None,
        images: ProcessorImages | None = None,
        history: History = "grow",
        thinking: Sequence[tuple[str, str]] = (("<think>", "</think>"),),
    ) -> None:
        if history not in HISTORIES:
            raise UsageError(f"history is {history!r}; expected one of {', '.join(HISTORIES)}")
        self.history: History = history
        self.same_turn = same_turn
        self.images = images
        backend = vocabulary.fast_tokenizer(tokenizer)
        source, values, name = vocabulary.template_of(tokenizer, chat_template, template_kwargs)
        self.vocabulary = vocabulary.Vocabulary(backend, size=vocab_size, source=source)
        if vocabulary.knows_no_text(self.vocabulary.plain):
            raise UsageError(f"tokenizer {name}: it has no ids for texts", hint="is tokenizer.json missing beside it?")
        if images is not None and images.place not in self.vocabulary.added:
            raise UnsupportedTemplate(f"tokenizer {name}: the processor's {images.place} is no token of it")
        leaks = self.vocabulary.leaks()
        if leaks:
            raise UnsupportedTemplate(
                f"tokenizer {name}: plain text makes the control tokens {', '.join(map(repr, leaks[:5]))}; content"
                " could not be told from structure"
            )
        self.template = vocabulary.ChatTemplate(source, name=name, values=values)
        self._seen_by = images if images is not None else NoImages(name)
        self._thinking = tuple(thinking)
        named = (stop,) if isinstance(stop, str) else tuple(stop or ())
        eos = str(getattr(tokenizer, "eos_token", None) or self.template.values.get("eos_token") or "")
        given = (*end_ids, *getattr(tokenizer, "end_ids", ()))
        self._named = tuple(mark for mark in (*named, eos) if mark)
        self._given_ends = frozenset(given)
        self._bind()

    def _bind(self) -> None:
        """Derives all that depends on the template."""
        place = self.images.place if self.images is not None else ""
        skipped: list[str] = []
        deriver = Deriver(self.template, self.declared_ends, Marks(tuple(self.vocabulary.added)), place, skipped)
        self._observations = Observations(deriver, self.vocabulary, self.images, self.same_turn)
        self.growth = Growth(
            self.template, self._observations.derive, added=self.vocabulary.added, thinking=self._thinking, place=place
        )
        skipped += [mark for pair in self.growth.reader.thinking for mark in pair]
        self._prompt_ids = PromptIds(self.template, self.vocabulary, self.images, {})
        layouts, refused = self._first_layouts()
        if not layouts:
            raise refused
        self.stop = layouts[0].stop
        self.stop_id = self.vocabulary.added[self.stop]
        written = [layout.stop for layout in layouts]
        self.closing_ids = frozenset(
            self.vocabulary.added[one.stop] for one in layouts if words_of(one.opener) & words_of(one.stop)
        )
        found, self.remarks, self.begins = end_marks(self.growth, self._named, written, self.same_turn)
        ends = (self.vocabulary.added[mark] for mark in found if mark in self.vocabulary.added)
        self.end_ids = frozenset({*self._given_ends, *ends} or {self.stop_id})

    def _first_layouts(self) -> tuple[list[Layout], UnsupportedTemplate]:
        """The layouts of one result and of one reply, as far as the template takes them."""
        layouts: list[Layout] = []
        refused = UnsupportedTemplate("")
        for roles in (("tool",), ("user",)) if self.same_turn is None else (("user",),):
            try:
                if self.same_turn is not None:
                    return [self._observations.derive(roles, (), None, ())], refused
                layout = self._observations.derive(roles, (), None, ())
                self._observations.program(layout)
                layouts.append(layout)
            except UnsupportedTemplate as error:
                refused = error
        return layouts, refused

    @property
    def declared_ends(self) -> tuple[str, ...]:
        """The marks that end a turn by what was given and by the model's files, without those the template writes."""
        return tuple(dict.fromkeys((*self._named, *self.vocabulary.texts(self._given_ends))))

    @property
    def stop_token_ids(self) -> list[int]:
        """The ids that generation has to stop at, in order; what a sampler is given."""
        return sorted(self.end_ids)

    def encode_content(self, text: str) -> list[int]:
        """The ids of plain content; no added token comes of it. The GIL is released while it is encoded."""
        return vocabulary.encode(self.vocabulary.plain, text)

    def encode_text(self, text: str) -> list[int]:
        """The ids of templated text, in which added tokens are tokens. The GIL is released while it is encoded."""
        return vocabulary.encode(self.vocabulary.full, text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, added tokens included.

        Raises:
            UsageError: an id is negative or far out of range.
        """
        try:
            return self.vocabulary.full.decode(ids, skip_special_tokens=False)
        except OverflowError as error:
            raise UsageError("a token id is negative or beyond 32 bits; expected ids of the tokenizer") from error

    def cut(self, *, max_tokens: int, keep: vocabulary.Keep = "head_tail") -> Callable[[str], str]:
        """A function that shortens a content to at most `max_tokens` tokens; see `token_cut`."""
        cut = vocabulary.token_cut(self.vocabulary.plain, max_tokens=max_tokens, keep=keep)
        images = self.images
        return cut if images is None else lambda text: cut(images.plain(text))

    def show(self, messages: Sequence[Message]) -> Shown:
        """Messages of the environment as this policy sees them: images decoded, or a note where one cannot be.

        A policy that reads text alone is told of each message's images, and shown none.
        """
        return self._seen_by.show(messages)

    def start(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_total_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        keep: vocabulary.Keep = "head_tail",
    ) -> TokenTrajectory:
        """A trajectory whose prompt is the template's rendering of `messages`, generation prompt included.

        Args:
            tools: schemas, in the form that the template shall write.
            max_prompt_tokens: a longer prompt is an error, never cut.
            max_response_tokens: the room for sampled turns and observations together; None: no limit.
            max_total_tokens: the room for prompt and response together; None: no limit.
            max_observation_tokens: each message of an observation is cut to this many tokens of content.
            keep: which part of a content stays when it is cut.

        Raises:
            UnsupportedTemplate: the template refuses the messages.
            EpisodeError: the prompt is longer than `max_prompt_tokens` (`reason` is "prompt_tokens"), or fills
                `max_total_tokens` (`reason` is "total_tokens"), or an image of it cannot be read (`reason` is "image").
        """
        limits = Limits(
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            max_total_tokens=max_total_tokens,
            max_observation_tokens=max_observation_tokens,
            keep=keep,
        )
        return self.start_within(limits, messages, tools)

    def start_within(
        self, limits: Limits, messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> TokenTrajectory:
        """The trajectory that `start` gives."""
        shown = self._seen_by.show_prompt(messages)
        if self.same_turn is not None:
            tools = ()
        story = self.story(messages, tools)
        ids = self._prompt_ids.of_prompt(messages, story, shown.places)
        return TokenTrajectory(self, ids, story, limits, images=shown.images)

    def start_rows(
        self, messages: Sequence[Message | Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), **limits: Any
    ) -> TokenRows:
        """A rollout as training rows: one, or with history "rows" a new one where the template rewrites history.

        `limits` are those of `start`; `TokenRows` says which hold for each row and which for all together.
        """
        return TokenRows(self, messages, tools, Limits(**limits))

    def start_after(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        said: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        story: Story,
        limits: Limits,
    ) -> TokenTrajectory:
        """A trajectory that goes on after `said`, what a policy and the environment said after the first `messages`.

        Every word of `said` is text, whatever it spells; thinking and calls are written by the template.

        Args:
            story: the shapes of what was said.

        Raises:
            UnsupportedTemplate: the template refuses the conversation.
            EpisodeError: as for `start`.
        """
        if self.same_turn is not None:
            tools = ()
        shown = self._seen_by.show_prompt((*messages, *said))
        ids = self._prompt_ids.of_history(messages, said, tools, shown.places, story.now, self.growth.way)
        return TokenTrajectory(self, ids, story, limits, images=shown.images)

    def encode_prompt(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> array[int]:
        """The ids of the template's rendering, generation prompt included, as an array of type q.

        No text of a message or a tool becomes a control token, but where the spec's author wrote it
        (`Message.authored`). Prompts that differ in their last user message only share the work for what stands before.

        Raises:
            EpisodeError: a text of the prompt holds the placeholder of an image (`reason` is "image").
        """
        return self._prompt_ids.of_prompt(messages, self.story(messages, () if self.same_turn else tools), ())

    def require(self, roles: Sequence[str]) -> None:
        """Passes where messages of `roles` can answer two turns without thinking with exact ids.

        This looks at one kind of turn; `rlenv.tokens.verdict.judge` looks at all that an environment may come to.

        Args:
            roles: such as `["tool"]`, or `["user"]` where an environment answers in words.

        Raises:
            UnsupportedTemplate: the message names the template and the place.
        """
        if self.same_turn is not None:
            return
        turn = TurnShape("none", "" if "tool" in roles else "before", tuple(roles))
        # With tools where a conversation without them is refused that goes on with messages of these roles.
        has_tools = self.growth.layout(self.story([USER]), turn).form.has_tools
        story = self.story([USER], (TOOL,) if has_tools else ())
        for _ in range(2):
            finding = self.growth.look(story, turn)
            if finding.is_refused:
                raise UnsupportedTemplate(finding.fault)
            if finding.fault and self.history == "grow":
                raise UnsupportedTemplate(self.refusal(roles, finding.fault))
            story.add(turn)

    def refusal(self, roles: Sequence[str], fault: str) -> str:
        """The message for a history that would be rewritten and may not be."""
        return (
            f"chat template {self.template.name} rewrites what was sampled before a message of {', '.join(roles)}: "
            f"{fault}; choose what to do: history rows (a new training row there) or keep (go on with the sampled ids)"
        )

    def story(self, messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Story:
        """A conversation of these first messages, of which the shapes are to be looked at."""
        return Story(list(map(as_template_reads, messages)), tools, datetime.now())

    def encode_messages(
        self, messages: Sequence[Message], *, places: Sequence[str] = (), layout: Layout | None = None
    ) -> array[int]:
        """The ids between an assistant's stop mark and the next sampled token, for messages that answer a turn.

        Args:
            places: what the processor writes for each image of the messages (see `show`).
            layout: what the template writes there; None: as in a short conversation.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for messages of these roles.
        """
        counts = tuple(len(message.images) for message in messages) if places else ()
        if layout is None:
            story = self.story([USER])
            turn = TurnShape("none", "", tuple(message.role for message in messages), counts)
            layout = self.growth.layout(story, turn)
        return self._observations.encode(messages, places, layout)

    def check_layout(self, layout: Layout) -> None:
        """Passes where contents can be encoded apart from this structure.

        Raises:
            UnsupportedTemplate: they cannot; the message names the template and the place.
        """
        self._observations.program(layout)

    def with_values(self, **values: Any) -> TokenEncoder:
        """The same with other names for the template.

        Raises:
            UnsupportedTemplate: as where one is made.
        """
        out = copy(self)
        out.template = vocabulary.ChatTemplate(
            self.template.source, name=self.template.name, values={**self.template.values, **values}
        )
        out._bind()
        return out

    def look(self, story: Story, turn: TurnShape) -> AnsweredTurn:
        """The template's rendering of a conversation that goes on by a turn and its answers.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these answers at all.
        """
        if self.same_turn is not None:
            return AnsweredTurn("", self._observations.derive(turn.roles, turn.images, None, ()), turn.roles)
        return self.growth.look(story, turn)
