"""What `rlenv` hands out, once for type checkers and once for whoever asks for a name; `__init__.py` reads it."""

from rlenv.concurrency.scope import Scope as Scope
from rlenv.concurrency.threads import run_sync as run_sync
from rlenv.episodes.environment import Environment as Environment
from rlenv.episodes.environment import load as load
from rlenv.episodes.episode import Episode as Episode
from rlenv.episodes.rollout import Job as Job
from rlenv.episodes.rollout import play as play
from rlenv.episodes.rollout import rollout as rollout
from rlenv.episodes.token_episode import TokenEpisode as TokenEpisode
from rlenv.episodes.tool_session import ToolSession as ToolSession
from rlenv.errors import EndpointError as EndpointError
from rlenv.errors import EpisodeError as EpisodeError
from rlenv.errors import Fault as Fault
from rlenv.errors import Finding as Finding
from rlenv.errors import InvalidReward as InvalidReward
from rlenv.errors import MissingExtra as MissingExtra
from rlenv.errors import MissingVariable as MissingVariable
from rlenv.errors import PolicyError as PolicyError
from rlenv.errors import ResourceError as ResourceError
from rlenv.errors import RewardError as RewardError
from rlenv.errors import RlenvError as RlenvError
from rlenv.errors import RunStopped as RunStopped
from rlenv.errors import SpecError as SpecError
from rlenv.errors import ToolFailed as ToolFailed
from rlenv.errors import UnknownEntry as UnknownEntry
from rlenv.errors import UnsupportedTemplate as UnsupportedTemplate
from rlenv.errors import UsageError as UsageError
from rlenv.gym.envs import make as make
from rlenv.gym.envs import make_vec as make_vec
from rlenv.hosts.chat import play_endpoint as play_endpoint
from rlenv.hosts.remote import RemoteEnvironment as RemoteEnvironment
from rlenv.hosts.session import Session as Session
from rlenv.language.kinds import CompileContext as CompileContext
from rlenv.language.kinds import Kind as Kind
from rlenv.language.spec import SamplingSpec as SamplingSpec
from rlenv.messages import Image as Image
from rlenv.messages import Message as Message
from rlenv.messages import Observation as Observation
from rlenv.messages import Sampled as Sampled
from rlenv.messages import ToolCall as ToolCall
from rlenv.messages import ToolResult as ToolResult
from rlenv.policies.base import Policy as Policy
from rlenv.policies.base import PolicyContext as PolicyContext
from rlenv.policies.base import PolicySession as PolicySession
from rlenv.policies.openai import OpenAIPolicy as OpenAIPolicy
from rlenv.policies.scripted import OraclePolicy as OraclePolicy
from rlenv.policies.scripted import RandomPolicy as RandomPolicy
from rlenv.policies.scripted import ScriptPolicy as ScriptPolicy
from rlenv.rewards.base import Measured as Measured
from rlenv.rewards.base import RewardContext as RewardContext
from rlenv.runs.evaluate import Evaluation as Evaluation
from rlenv.runs.evaluate import evaluate as evaluate
from rlenv.runs.evaluate import evaluate_async as evaluate_async
from rlenv.runs.folder import open_run as open_run
from rlenv.runs.stage import PolicyChoice as PolicyChoice
from rlenv.tokens.bound import bind as bind
from rlenv.tokens.encoder import TokenEncoder as TokenEncoder
from rlenv.tools.base import ToolContext as ToolContext
from rlenv.tools.base import ToolOutput as ToolOutput
from rlenv.trajectory import Step as Step
from rlenv.trajectory import Trajectory as Trajectory

__version__: str
__all__: list[str]
_LAZY: dict[str, str]
