"""The typed spec: the one source of truth of the language, version 1.

Every class here is a mapping of the YAML file. Docstrings are what editors show; `schemas/` is generated from these.
Kinds of tools, resources and rewards bring their own spec classes (see `rlenv.language.kinds`), derived from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlenv.language.dialect import Bool, ByRow, DialectSpec, Float, Int, Prose, Spec, Text
from rlenv.language.sources import DatasetSpec, ReasoningGymSpec

__all__ = ["AnswerSpec", "Bool", "BreakerSpec", "CacheSpec", "CallsSpec", "DatasetSpec", "DelaySpec", "EnvSpec"]
__all__ += ["FaultsSpec", "Float", "Int", "LimitsSpec", "ObservationSpec", "OracleFunction", "OracleStep", "PromptSpec"]
__all__ += ["Prose", "ReasoningGymSpec", "ResourceSpec", "RewardSpec", "SamplingSpec", "Spec", "TaskSource", "Text"]
__all__ += ["ToolSpec", "UserSpec"]


class TaskSource(Spec):
    """One split's tasks, a row an episode: from `path`, `function`, `hf`, `harbor`, `reasoning_gym` or `rows`."""

    path: Text | tuple[Text, ...] | None = None
    """A .jsonl, .json, .csv or .parquet file, relative to the spec, or .jsonl.gz; or several: a list, a pattern."""
    key: Text | None = None
    """With `path`: the dotted key below which a .json file holds its rows, such as `data`."""
    function: Text | None = None
    """`module:function` or `file.py:function` that returns rows, or a list; one with `index` returns that row."""
    arguments: Mapping[str, Any] = {}
    """With `function`: arguments by name; texts are templates over `vars`."""
    endless: Bool = False
    """With `function`: the iterable never ends; rows are drawn as they are needed."""
    hf: DatasetSpec | None = None
    """A dataset of the Hugging Face hub."""
    harbor: Text | None = None
    """A folder of tasks in Harbor's format, or one of them, relative to the spec."""
    reasoning_gym: ReasoningGymSpec | None = None
    """Generated tasks of reasoning-gym."""
    rows: tuple[Mapping[str, Any], ...] | None = None
    """Rows written in the spec itself."""
    when: Text | None = None
    """Only rows for which this expression over `task` and `vars` holds, such as `task.level >= 3`."""
    limit: Annotated[Int, Field(ge=1)] | None = None
    """Take this many rows (after shuffling, in `order`)."""
    shuffle: Int | None = None
    """Shuffle the rows with this seed; the order in the file otherwise."""
    order: Text | None = None
    """An expression over `task`, `vars` and, in a training, `measured`: rows are asked by its value, smallest first."""
    report_by: Text | None = None
    """A column: success is also reported for each of its values, and a part of the split is drawn evenly over them."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path of `path`."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()


class PromptSpec(Spec):
    """The first messages, as sandboxed Jinja templates over `task`, `resources` and `vars`."""

    system: Prose | None = None
    """The system message, to which tools are added. Like every prompt it may stand in a file: `{file: system.md}`."""
    messages: Text | tuple[Text | Mapping[str, Any], ...] = ()
    """Messages in OpenAI's form, or templates that give lists of them: examples, or without `user` the dialogue."""
    user: Prose = ""
    """The user's message, which states the task; without one `messages` end with it, or the simulated user begins."""
    images: tuple[Text, ...] = ()
    """Templates that give images of the user's message: a file, a data URL, what a resource holds, or a list."""

    @property
    def asks(self) -> bool:
        """True where the spec writes the user's message itself."""
        return "user" in self.model_fields_set

    @property
    def shown(self) -> tuple[str | Mapping[str, Any], ...]:
        """The entries of `messages`."""
        return (self.messages,) if isinstance(self.messages, str) else self.messages


Share = Annotated[Float, Field(ge=0, le=1)]
Stop = Annotated[Text, Field(min_length=1)]


class CacheSpec(Spec):
    """Keeps results of equal calls. Failures are never kept; equal calls at once become one."""

    scope: Literal["process", "episode", "disk", "none"] = "process"
    """`process`: in memory, for all episodes; `episode`: for one; `disk`: in a file; `none`: nothing is kept."""
    ttl_s: Annotated[Float, Field(gt=0)] | None = None
    """A result is kept for so many seconds; until it is pushed out otherwise."""
    path: Text | None = None
    """With `disk`: the file, relative to the spec; one in the user's cache folder otherwise."""
    limit: Annotated[Int, Field(ge=1)] = 10_000
    """The results used longest ago are pushed out beyond this many of one tool."""
    key: Literal["arguments", "task"] | None = None
    """What a result depends on: the `arguments` alone, or the `task` too; by default what the tool says of itself."""


class BreakerSpec(Spec):
    """Stops calling a tool that keeps failing, and tries it again after a while."""

    failures: Annotated[Int, Field(ge=0)] = 10
    """Failures in a row after which calls are refused at once; 0 never refuses."""
    reset_s: Annotated[Float, Field(gt=0)] = 30.0
    """Seconds after which one call is let through; it decides whether the others are."""


class DelaySpec(Spec):
    """A delay before some calls."""

    p: Share
    """The share of calls that are delayed."""
    range: tuple[Annotated[Float, Field(ge=0)], Annotated[Float, Field(ge=0)]]
    """The shortest and the longest delay, in seconds; evenly spread."""


class FaultsSpec(Spec):
    """Faults put in on purpose; the same ones for equal task, seed, turn and call."""

    error: Share = 0.0
    """The share of calls that fail."""
    delay_s: DelaySpec | None = None
    """Delays some calls; one that is delayed past its time limit times out."""
    garble: Share = 0.0
    """The share of results whose text is scrambled."""
    oversize: Share = 0.0
    """The share of results that grow to 10 MB."""
    hang: Share = 0.0
    """The share of calls that hang until their time limit."""
    seed: Int = 0
    """Another seed gives other faults."""

    @property
    def is_on(self) -> bool:
        """True where some call may meet a fault."""
        delayed = self.delay_s is not None and self.delay_s.p > 0
        return delayed or any((self.error, self.garble, self.oversize, self.hang))


class PolicySpec(Spec):
    """The policy of calls: under `calls` for all tools, in a tool's entry for its own, which wins."""

    retries: Annotated[Int, Field(ge=0, le=20)] | None = None
    """A failed call of an idempotent tool is tried again so often, with growing waits."""
    attempt_s: Annotated[Float, Field(gt=0)] | None = None
    """One try is ended after this many seconds; all tries and the waits between them stay within `timeout_s`."""
    rate_per_s: Annotated[Float, Field(gt=0)] | None = None
    """At most this many calls a second of one tool in one process; others wait within their time limit."""
    shared_concurrency: Annotated[Int, Field(ge=1, le=4096)] | None = None
    """At most this many calls of one tool at once over all processes of the machine that run this spec."""
    cache: CacheSpec | None = None
    """Keeps results of equal calls, of idempotent tools that do not mutate; `{scope: none}` keeps none."""
    breaker: BreakerSpec | None = None
    """Refuses calls of a tool after many failures in a row; `{failures: 0}` never does."""
    faults: FaultsSpec | None = None
    """Faults put in on purpose, to train and test against flaky tools; `{}` for none."""
    coerce: tuple[Literal["number", "integer", "boolean"], ...] | None = None
    """Types that may come as text: with `integer`, "3" is taken where a whole number is expected."""


class ToolSpec(PolicySpec):
    """The keys that every kind of tool takes."""

    aside: ClassVar[Mapping[str, str]] = {
        "kind": "a tape knows the call by it anyway",
        "description": "the policy reads it, and is not asked in a replay",
        "example": "it is for checks, and no episode reads it",
        **dict.fromkeys(("timeout_s", "attempt_s"), "a recorded answer takes the time that it took"),
        **dict.fromkeys(("concurrency", "shared_concurrency", "rate_per_s"), "a recorded answer waits for no place"),
        "retries": "what is recorded is what the last try gave",
        "idempotent": "it decides about retries and kept results",
        "cache": "what is recorded is what the episode had, kept from before or not",
        "breaker": "what is recorded is what the episode had, refused or not",
        "faults": "they are drawn anew",
        "coerce": "it is done again, before a call is looked up",
        "mutates": "the calls of a turn are put in order again",
        "ends": "it is asked again, of what is answered",
        "offered": "who calls it had it",
    }
    """Options that do not decide what a call of such a tool is answered, with the reason; an answer on a tape is one to
    all others."""
    kind: Text
    """Which kind of tool this is."""
    description: Text | None = None
    """What the model reads; by default the kind's own, or a function's docstring."""
    timeout_s: Annotated[Float, Field(gt=0)] | None = None
    """A call is ended after this many seconds; `calls.timeout_s` otherwise."""
    concurrency: Annotated[Int, Field(ge=1)] | None = None
    """At most this many calls at once in one process; `calls.concurrency` otherwise."""
    mutates: Bool = False
    """True if calls change state: such a tool is never run beside other calls of its turn."""
    offered: Bool | Text = True
    """False: for rewards alone. Or a template over `task`, `vars` and `user_turn` that gives true, false or names."""
    ends: Bool | Text = False
    """True if a call that succeeds ends the episode. Or a template that is asked after each call, over `resources`,
    `task`, `vars`, `tool` and `result`, such as `{{ resources.game.over }}`; what gives `truncated` truncates."""
    idempotent: Bool | None = None
    """True if a call may be repeated without harm; by default what the kind says. Retries and the cache need it."""
    example: Mapping[str, Any] | None = None
    """Arguments for `rlenv tools SPEC check`; for an entry that gives several tools, by the tool's name."""


class ResourceSpec(Spec):
    """The keys that every kind of resource takes."""

    kind: Text
    """Which kind of resource this is."""
    scope: Literal["episode", "process"] = "episode"
    """`episode`: opened for each episode and closed with it; `process`: opened once and shared."""


class UserSpec(Spec):
    """The keys of every kind of simulated user, who replies to an action without a call and without an answer."""

    kind: Text
    """`scripted`, `python` or `model`."""
    stop: Stop | tuple[Stop, ...] | None = "###STOP###"
    """A reply that contains this text, or one of several, ends the episode."""
    hears: Literal["messages", "all"] = "messages"
    """`all`: the user also sees the policy's calls and their results."""


class RewardSpec(Spec):
    """The keys that every kind of reward term takes."""

    kind: Text
    """`rule`, `verify`, `state`, `tests`, `judge` or `group`."""
    weight: Float | ByRow = 1.0
    """The term's factor; 0 measures without rewarding. Or a template over `task` and `vars`: each row's, from 0."""
    when: Literal["episode", "turn"] = "episode"
    """Measure once at the end, or after every turn."""
    over_turns: Literal["mean", "sum"] = "mean"
    """How a turn term's values make the episode's value; with `sum`, longer episodes can earn more."""
    gate: Text | None = None
    """Skip this term unless the comparison holds, such as `correct >= 1`, or `task.kind == "proof"` of the row."""
    required: Bool = True
    """If this term is invalid the whole reward is; otherwise the term alone is left out."""
    range: tuple[Float, Float] | None = None
    """Normalises: this range becomes 0 … 1, so that with `[1, 5]` 1 is 0 and 5 is 1."""
    clip: tuple[Float, Float] | None = None
    """Values outside are moved to the nearer end; after `range`."""
    on_invalid: Literal["mask", "retry", "raise"] = "mask"
    """`mask`: see `required`; `retry`: measure twice more first; `raise`: stop the run."""

    @property
    def usual_weight(self) -> float:
        """The weight; 1.0 where rows give it."""
        return 1.0 if isinstance(self.weight, str) else self.weight


class SamplingSpec(Spec):
    """The sampling of a model's next tokens; keys that are left out are left to the server."""

    temperature: Annotated[Float, Field(ge=0)] | None = None
    """0 is greedy."""
    top_p: Annotated[Float, Field(gt=0, le=1)] | None = None
    """Sample from the most likely tokens with this share of the probability."""
    max_tokens: Annotated[Int, Field(ge=1)] | None = None
    """Of one answer."""
    seed: Int | None = None
    """Equal seeds give equal answers, as far as the server keeps that."""
    stop: tuple[Text, ...] | None = None
    """Texts at which the answer ends."""
    extra: Mapping[str, Any] = Field(default_factory=dict)
    """Other fields of the request, such as `chat_template_kwargs`; sent as they stand."""


class EndpointSpec(Spec):
    """An OpenAI-compatible server and a model on it. Texts may name secrets as `${env:NAME}`."""

    base_url: Text
    """The address up to and with `/v1`; `/chat/completions` is added."""
    model: Text
    """The model's name at the server."""
    api_key: Text | None = None
    """Sent as `Authorization: Bearer …`; write `${env:NAME}`, never the key itself."""
    headers: Mapping[str, Text] = Field(default_factory=dict)
    """Sent with every request."""
    concurrency: Annotated[Int, Field(ge=1)] = 64
    """Requests at once in one process; further ones wait."""
    timeout_s: Annotated[Float, Field(gt=0)] = 60.0
    """A request is given up after this many seconds."""
    retries: Annotated[Int, Field(ge=0)] = 3
    """Further attempts after 408, 409, 425, 429, 5xx, a lost connection or no answer in time."""
    sampling: SamplingSpec = SamplingSpec()
    """For all requests; who asks may set fields of it anew."""


class CallsSpec(PolicySpec):
    """Defaults for the calls of all tools."""

    timeout_s: Annotated[Float, Field(gt=0)] = 10.0
    """A call is ended after this many seconds."""
    concurrency: Annotated[Int, Field(ge=1)] = 256
    """At most this many calls of one tool at once in one process."""


class ObservationSpec(Spec):
    """The form in which results are shown to the model."""

    format: Literal["text", "json", "template"] = "text"
    """`text`: the result's text; `json`: an object with the result or the error; `template`: see `template`."""
    template: Prose | None = None
    """Jinja over `result`, `tool`, `is_error`, `task`, `turn`, `vars`; with `format: template`."""
    max_tokens: Annotated[Int, Field(ge=8)] | None = None
    """Cut a result's content to this many tokens (where a tokenizer is bound; about 4 characters a token otherwise)."""
    max_chars: Annotated[Int, Field(ge=16)] = 16_384
    """Cut a result's content to this many characters."""
    keep: Literal["head", "tail", "head_tail"] = "head_tail"
    """Which part of a long result is kept."""
    images: Literal["keep", "drop"] = "keep"
    """`drop` leaves out the images of results, for a policy that reads text alone."""


class AnswerSpec(Spec):
    """The rule that finds the answer in the policy's text."""

    from_: Annotated[Literal["tag", "boxed", "regex", "last_number", "final_message", "tool"], Field(alias="from")] = (
        "tag"
    )
    """The rule: a tag, \\boxed{}, a regular expression, the last number, the whole final message, or a tool's call."""
    tag: Text = "answer"
    """With `tag`: the tag's name; the last one in the message counts."""
    pattern: Text | None = None
    """With `regex`: the pattern; its first group is the answer, the last match counts."""
    tool: Text | None = None
    """With `tool`: the name of the tool whose call submits the answer; it ends the episode, as by `ends: true`."""
    argument: Text | None = None
    """With `tool`: the argument that holds the answer; by default the only one."""


class LimitsSpec(Spec):
    """The limits of an episode, each a number, or a template over `task` and `vars` that gives one."""

    turns: Annotated[Int, Field(ge=1)] | ByRow = 8
    """Actions of the policy."""
    turns_per_reply: Annotated[Int, Field(ge=1)] | ByRow | None = None
    """Actions of the policy in a row that say nothing to the simulated user; the episode ends after so many."""
    tool_calls: Annotated[Int, Field(ge=1)] | ByRow = 64
    """Calls of the whole episode that are run; more are answered with an error, and the episode goes on."""
    calls_per_turn: Annotated[Int, Field(ge=1)] | ByRow = 16
    """Calls of one action that are run; more are answered with an error."""
    invalid_actions: Annotated[Int, Field(ge=1)] | ByRow = 3
    """Actions in a row with a malformed, unknown or ill-typed call."""
    episode_s: Annotated[Float, Field(gt=0)] | ByRow = 300.0
    """Seconds of wall time, the policy's own included."""
    turn_s: Annotated[Float, Field(gt=0)] | ByRow | None = None
    """Seconds that the calls of one turn may take together; the episode's time otherwise."""
    reward_s: Annotated[Float, Field(gt=0)] | ByRow = 60.0
    """Seconds that measuring the reward may take once the episode has ended; a slower term is invalid."""
    response_tokens: Annotated[Int, Field(ge=1)] | ByRow | None = None
    """Tokens after the prompt, observations included; a trainer may set a smaller one."""


class OracleStep(Spec):
    """A step of the oracle: its calls, then its text, each an action of its own."""

    call: Text | Mapping[str, Any] | tuple[Any, ...] | None = None
    """`{tool: {argument: value}}` or another form of a call; a list makes several at once, lists in it actions."""
    say: Text | None = None
    """The text of an action, said once the results of `call` are there."""
    for_each: Text | None = None
    """An expression that gives a list; the step is repeated with `item` bound to each element."""
    when: Text | None = None
    """An expression; where it is false the step is left out."""
    expect: Any = None
    """What the last result of `call` must contain, if it is a text, or equal: otherwise the oracle fails."""


class OracleFunction(Spec):
    """An oracle in Python."""

    function: Text
    """`file.py:function` or `module:function` that gives the next action, or a list of them."""


class EnvSpec(Spec):
    """A whole environment in one file."""

    rlenv: Literal[1]
    """The version of the language."""
    name: Annotated[Text, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    """Registered as rlenv/NAME-vVERSION."""
    version: Annotated[Int, Field(ge=0)] = 0
    """Raise it whenever rewards or prompts change, so that results stay comparable."""
    description: Text = ""
    """One line for lists and docs."""
    extends: Text | tuple[Text, ...] | None = None
    """Another spec to start from, or several, of which the later wins: mappings merge, everything else is replaced."""
    vars: Mapping[str, Any] = Field(default_factory=dict)
    """Constants for templates and paths: `{{ vars.name }}`."""
    roots: tuple[Text, ...] = ()
    """Folders, relative to the spec, below which rows may name paths too; `/` for anywhere."""
    tasks: Annotated[Mapping[str, TaskSource], Field(min_length=1)]
    """Splits by name, such as train and test."""
    prompt: PromptSpec
    dialect: Text | DialectSpec = "hermes"
    """How the model writes calls and reads results: a name, or a mapping that defines or changes one."""
    endpoints: Mapping[str, EndpointSpec] = Field(default_factory=dict)
    """OpenAI-compatible servers by name, for model tools, agents, simulated users and judges."""
    resources: Mapping[str, ResourceSpec] = Field(default_factory=dict)
    """State that tools, rewards and prompts share."""
    tools: Mapping[str, ToolSpec] = Field(default_factory=dict)
    """Tools by the name the model calls."""
    calls: CallsSpec = CallsSpec()
    observation: ObservationSpec = ObservationSpec()
    user: UserSpec | None = None
    """A simulated user, for dialogues."""
    answer: AnswerSpec = AnswerSpec()
    limits: LimitsSpec = LimitsSpec()
    rewards: Annotated[Mapping[str, RewardSpec], Field(min_length=1)]
    """Terms of the reward by name."""
    success: Text | None = None
    """What eval counts as success; by default every required term with a positive weight at 1 or more."""
    oracle: tuple[OracleStep, ...] | OracleFunction | Text | None = None
    """What solves the tasks: steps, a function, or a template that gives recorded actions."""

    @property
    def steps(self) -> tuple[OracleStep, ...]:
        """The steps of the oracle; () where it has another form, or there is none."""
        return self.oracle if isinstance(self.oracle, tuple) else ()
