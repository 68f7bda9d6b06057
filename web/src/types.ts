/** The shapes that the API answers with. They mirror what `rlenv/web` sends; nothing here is computed. */

export type Mode = "train" | "greedy" | "sampled";
export type Plain = null | boolean | number | string | Plain[] | { [key: string]: Plain };

export interface Run {
  key: string;
  name: string;
  path: string;
  kind: string;
  spec: string;
  environment: string;
  policy: string;
  model: string;
  state: string;
  step: number;
  episodes: number;
  success: number | null;
  success_low: number | null;
  success_high: number | null;
  invalid: number;
  spark: (number | null)[];
  mode: string;
  first_step: number;
  last_step: number;
  splits: string[];
  asked: number | null;
  cost: number | null;
  currency: string;
  lock: string;
  started: number | null;
  ended: number | null;
  attempts: unknown;
}
export interface Reading {
  why: string;
  id?: string;
  step?: number;
  group?: string;
  reward: number | null;
  title: string;
}
export interface RunPage extends Run {
  facts: Record<string, Plain>;
  terms: string[];
  tools: string[];
  columns: { name: string; type: string }[];
  played: string[];
  reasons: Record<string, number>;
  failures: Record<string, number>;
  fates: { fate: Record<string, number>; why: Record<string, number> };
  version: string | number;
  read: Reading[];
}
export interface Curve {
  mean: (number | null)[];
  low?: (number | null)[];
  high?: (number | null)[];
  n?: number[];
}
export interface Series {
  version: string | number;
  steps: number[];
  series: Record<string, Curve>;
}

export interface TermRow {
  name: string;
  status: string;
  value: number | null;
  weight?: number;
  error?: string;
}
export interface Row {
  id: string;
  attempt: number;
  lock: string;
  environment: string;
  split: string;
  task: number;
  sample: number;
  seed: number;
  group: string;
  step: number;
  mode: string;
  started: number;
  seconds: number;
  turns: number;
  calls_n: number;
  errors: number;
  malformed: number;
  tokens: number;
  trained_tokens: number;
  reward: number | null;
  success: boolean | null;
  reason: string;
  failure: string;
  failure_message: string;
  answer: string | null;
  title: string;
  has_body: boolean;
  fate?: string | null;
  advantage?: number | null;
  why?: string | null;
  staleness?: number | null;
  terms: TermRow[];
  [column: string]: unknown;
}
export interface Page {
  version: string | number;
  total: number;
  matched: number;
  rows: Row[];
}
export interface Facet {
  value: string | number | boolean | null;
  count: number;
}

export interface Picture {
  mime: string;
  sha: string;
}
export interface Call {
  name: string | null;
  arguments?: Record<string, Plain>;
  text?: string;
  reason?: string;
}
export interface Result {
  name: string;
  text: string;
  outcome: string;
  value: Plain;
  seconds: number;
  started?: number | null;
  waited?: number;
  images: Picture[];
  details: Record<string, Plain> | null;
  reason: string;
  whose: string;
}
export interface Message {
  role: string;
  content: string;
  name?: string | null;
  images?: Picture[];
  thinking?: string;
  tool_calls?: Plain[];
}
export interface Turn {
  index: number;
  action: string;
  parsed: { content: string; thinking: string; calls: Call[]; is_cut: boolean; leniencies: string[] };
  results: Result[];
  observation: { messages: Message[]; text: string } | null;
  calls_malformed: number;
  seconds: number;
  finish_reason: string;
  generated?: number | null;
}
export interface Term {
  name: string;
  status: string;
  value: number | null;
  weight: number;
  evidence: string;
  error: string;
  seconds: number;
  turn_values: (number | null)[];
  details: Record<string, Plain>;
}
export interface Reward {
  total: number | null;
  terms: Record<string, Term>;
  turn_rewards: number[];
}
export interface Trajectory {
  environment: string;
  split: string;
  task_index: number;
  seed: number;
  task: Record<string, Plain>;
  messages: Message[];
  turns: Turn[];
  answer: string | null;
  terminated: boolean;
  truncated: boolean;
  reason: string;
  reward: Reward;
  success: boolean | null;
  failure: { reason: string; message: string } | null;
  seconds: number;
}
export interface CallRow {
  turn: number;
  index: number;
  tool: string;
  outcome: string;
  started: number | null;
  waited: number;
  seconds: number;
  attempts: number;
  cached: boolean;
  chars: number;
}
export interface Place {
  message: number;
  start: number;
  end: number;
}
export interface Episode {
  row: Row;
  record: Trajectory | null;
  missing?: string;
  cuts?: Record<string, number>;
  where: Record<string, Place[] | null>;
  expected: Record<string, string>;
  nested: string[];
  late: Record<string, Plain> | null;
  neighbours: { prev: string | null; next: string | null };
  group: { step: number; group: string; samples: number; ids: string[] } | null;
  calls: CallRow[];
  spending: Spending;
  lock: string | Record<string, Plain> | null;
}
export interface TokenRow {
  n: number;
  runs: { start: number; end: number; kind: "prompt" | "observation" | "sampled" }[];
  pieces: string[];
  ids: number[];
  logprobs: (number | null)[] | null;
  mask: string;
}
export interface Tokens {
  rows: TokenRow[];
  advantage: number | null;
  tokenizer: boolean;
}

export interface GroupTurn {
  action: string;
  calls?: { name: string | null; arguments?: Plain }[];
  results: { name: string; outcome: string; text: string }[];
  say: string;
}
export interface Group {
  episodes: { row: Row; turns: GroupTurn[] }[];
  samples: number;
  mean: number | null;
  spread: number | null;
  over_steps: { step: number; mean: number | null; n: number }[];
}
export interface ToolFacts {
  tool: string;
  calls: number;
  errors: number;
  outcomes: Record<string, number>;
  p50: number | null;
  p90: number | null;
  p99: number | null;
  waited_p50: number | null;
  slowest: { id: string; turn: number; index: number; seconds: number }[];
  failing: { id: string; turn: number; index: number }[];
  by_step: { step: number; calls: number; errors: number; p90: number | null }[];
}
export interface RoleSpending {
  role: string;
  model: string;
  requests: number;
  failed: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  seconds: number;
  cost: number | null;
  notes: string[];
}
export interface Spending {
  roles: RoleSpending[];
  currency: string;
  said: string;
}
export interface TaskRow {
  id: string;
  split: string;
  task: number;
  group: string;
  step: number;
  title: string;
  n: number;
  valid: number;
  won: number;
  reward: number | null;
}
export interface Tasks {
  tasks: TaskRow[];
  more: number;
  spread: { won: number; valid: number; n: number }[];
  pass_at: Record<string, number | null>;
  pass_hat: Record<string, number | null>;
  /** The tasks with k valid samples, which pass@k and pass^k are of. */
  pass_of: Record<string, number>;
  rewards: { reward: number; success: boolean | null; n: number }[];
  groups: Record<
    string,
    {
      episodes: number;
      success_rate: number | null;
      success_interval: [number, number] | null;
      reward_mean: number | null;
      invalid: number;
    }
  >;
}
export interface Counted {
  n: number;
  q: string;
}
export interface RewardFacts {
  terms: {
    name: string;
    weight: number;
    mean: number | null;
    valid: number;
    invalid: number;
    skipped: number;
    by_step: { step: number; mean: number | null }[];
    errors: { error: string; count: number }[];
  }[];
  terms_more: number;
  scatter: { reward: number; success: boolean | null; n: number }[];
  quadrants: Record<string, Counted>;
  invalid: ({ reason: string } & Counted)[];
  judge: {
    terms: {
      name: string;
      kappa: number | null;
      n: number;
      against: string;
      disagreed: number;
      disagree: { id: string; title: string; scores: (number | null)[]; success: boolean | null }[];
    }[];
    episodes: number;
  } | null;
}
export interface Side {
  id: string;
  reward: number | null;
  success: boolean | null;
}
export interface Change {
  a: number | null;
  b: number | null;
  change: number | null;
}
export interface Tested extends Change {
  low: number | null;
  high: number | null;
  p: number | null;
}
export interface Comparison {
  lock: { section: string; key: string; a: Plain; b: Plain }[];
  pairs: number;
  paired_by: "seed" | "sample";
  unpaired: { a: number; b: number };
  asked_otherwise: number;
  /** Why they are not two runs of the same tasks; "" where they are. */
  unlike: string;
  success: Tested & {
    fixed: number;
    broken: number;
    same: number;
    invalid: number;
    bounds: [number, number] | null;
  };
  reward: Tested;
  terms: Record<string, Tested>;
  terms_unpaired: { a: string[]; b: string[] };
  by_task: {
    split: string;
    task: number;
    title: string;
    other: string | null;
    kind: string;
    n: number;
    success: Change;
    reward: Change;
    pairs: { seed: number; a: Side; b: Side; kind: string }[];
  }[];
  tasks_left_out: number;
}
export interface Wait {
  tool?: string;
  what?: string;
  seconds: number;
  n: number;
}
export interface Live {
  version: string | number;
  rows: number;
  step: number;
  state: string;
  waits: Wait[];
}
export interface Config {
  version: string;
  readOnly: boolean;
  roots: string[];
}
export interface Hit {
  id: string;
  where: string;
  before: string;
  hit: string;
  after: string;
  done?: boolean;
}

export interface SpecFault {
  line: number;
  column: number;
  end_line?: number;
  end_column?: number;
  path?: string;
  message: string;
  hint?: string | null;
  level?: "fault" | "warning";
}
export interface Diagnosis {
  faults: SpecFault[];
  superseded?: boolean;
}
export interface FormField {
  name: string;
  doc: string;
  type: string;
  input: "choice" | "integer" | "number" | "text" | "any" | "json";
  choices: Plain[];
  default: Plain;
  required: boolean;
  shared: boolean;
}
export interface Forms {
  entries: Record<string, Record<string, Plain>>;
  kinds: Record<string, { doc: string; fields: FormField[] }>;
}
export interface Compiled {
  superseded?: boolean;
  prompt: { role: string; content: string }[];
  tools: Plain[];
  tasks: { index: number; row: Record<string, Plain>; split?: string }[];
  schema: Plain;
  splits: string[] | Record<string, number>;
}
export interface PlayTurn {
  index: number;
  action: string;
  parse: { content: string; thinking: string; calls: Call[]; is_cut: boolean; leniencies: string[] };
  results: Pick<Result, "name" | "text" | "outcome" | "seconds" | "reason">[];
  observation: string;
  seconds: number;
  schedule: { tool: string; outcome: string; started: number | null; waited: number; seconds: number }[];
}
export interface PlayState {
  messages: Message[];
  turns: PlayTurn[];
  ended: boolean;
  reason: string;
  answer: string | null;
  success: boolean | null;
  failure: { reason: string; message: string } | null;
  reward: { total: number | null; terms: Term[] } | null;
  spending: Spending;
}
export interface Job {
  id: string;
  kind: string;
  argv: string[];
  state: string;
  started: number | null;
  run: string | null;
  code: number | null;
}
