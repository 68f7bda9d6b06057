/** An episode of the spec, step by step: what was parsed, when calls ran, what came back, the terms so far. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, Fault, names, Num, Outcome, plural, seconds, Verdict } from "../bits";
import { post, remove, type Refusal } from "../core";
import { Untrusted, UntrustedBlock } from "../text";
import type { CallRow, PlayState, PlayTurn } from "../types";
import { Bars, spanOf } from "./conversation";
import { Waterfall } from "./reward";
import { SpendingTable } from "./spending";

const POLICIES = [
  ["you", "by hand"],
  ["oracle", "the oracle"],
  ["openai", "an endpoint"],
] as const;

export function Play({ spec, text }: { spec: string; text: string }) {
  const [split, setSplit] = useState(""),
    [task, setTask] = useState(0),
    [seed, setSeed] = useState(0),
    [policy, setPolicy] = useState("you"),
    [url, setUrl] = useState(""),
    [model, setModel] = useState("");
  const [session, setSession] = useState(""),
    [state, setState] = useState<PlayState | null>(null),
    [action, setAction] = useState(""),
    [busy, setBusy] = useState(false),
    [fault, setFault] = useState<Refusal>(),
    open = useRef(""),
    said = useRef<HTMLTextAreaElement>(null);
  useEffect(
    () => () => {
      if (open.current) void remove(`/api/play/${open.current}`).catch(() => undefined);
    },
    [],
  );
  const doing = async (work: () => Promise<void>) => {
    setBusy(true);
    setFault(undefined);
    try {
      await work();
    } catch (error) {
      setFault(error as Refusal);
    }
    setBusy(false);
  };
  const start = () =>
    doing(async () => {
      if (open.current) await remove(`/api/play/${open.current}`).catch(() => undefined);
      const made = await post<{ session: string; state: PlayState }>("/api/play", {
        spec,
        text,
        ...(split ? { split } : {}),
        task,
        seed,
        policy,
        ...(policy === "openai" ? { base_url: url, model } : {}),
      });
      open.current = made.session;
      setSession(made.session);
      setState(made.state);
      setAction("");
      requestAnimationFrame(() => said.current?.focus());
    });
  const step = () =>
    doing(async () => {
      const made = await post<{ state: PlayState }>(`/api/play/${session}/step`, policy === "you" ? { action } : {});
      setState(made.state);
      setAction("");
    });
  return (
    <div class="stack play">
      <form
        class="toolbar"
        onSubmit={event => {
          event.preventDefault();
          void start();
        }}
      >
        <label>
          policy{" "}
          <select value={policy} onChange={event => setPolicy(event.currentTarget.value)}>
            {POLICIES.map(([value, word]) => (
              <option key={value} value={value}>
                {word}
              </option>
            ))}
          </select>
        </label>
        <label>
          split{" "}
          <input size={6} value={split} placeholder="first" onInput={event => setSplit(event.currentTarget.value)} />
        </label>
        <label>
          row <input type="number" min={0} value={task} onInput={event => setTask(Number(event.currentTarget.value))} />
        </label>
        <label>
          seed <input type="number" value={seed} onInput={event => setSeed(Number(event.currentTarget.value))} />
        </label>
        {policy === "openai" && (
          <>
            <label>
              endpoint{" "}
              <input
                value={url}
                placeholder="http://127.0.0.1:8000/v1"
                onInput={event => setUrl(event.currentTarget.value)}
              />
            </label>
            <label>
              model <input value={model} onInput={event => setModel(event.currentTarget.value)} />
            </label>
          </>
        )}
        <button class="primary" disabled={busy}>
          {session ? "Start again" : "Start"}
        </button>
      </form>
      <Fault fault={fault} />
      {!state ? <Empty>An episode opens with the text in the editor, saved or not.</Empty> : <Shown state={state} />}
      {state && !state.ended && (
        <form
          class="say"
          onSubmit={event => {
            event.preventDefault();
            void step();
          }}
        >
          {policy === "you" && (
            <>
              <textarea
                ref={said}
                rows={5}
                aria-label="What the model says"
                placeholder="What the model says, calls and answer included"
                value={action}
                onInput={event => setAction(event.currentTarget.value)}
                onKeyDown={event => {
                  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
                    event.preventDefault();
                    void step();
                  }
                }}
              />
            </>
          )}
          <button class="primary" disabled={busy || (policy === "you" && !action)}>
            {busy ? "…" : "Step"}
          </button>
        </form>
      )}
    </div>
  );
}

function Shown({ state }: { state: PlayState }) {
  const box = useRef<HTMLDivElement>(null),
    first = state.messages.findIndex(m => m.role === "assistant"),
    asked = first < 0 ? state.messages : state.messages.slice(0, first);
  useEffect(() => {
    box.current?.lastElementChild?.scrollIntoView({ block: "nearest" });
  }, [state]);
  return (
    <div class="cards" ref={box}>
      {asked.map((m, i) => (
        <article key={i} class={names("card", m.role)}>
          <header>
            <h2>{m.role}</h2>
          </header>
          <UntrustedBlock text={m.content} plain />
        </article>
      ))}
      {state.turns.map(turn => (
        <Played key={turn.index} turn={turn} />
      ))}
      {state.reward && state.reward.terms.length > 0 && (
        <section>
          <h2>Reward{state.ended ? "" : " so far"}</h2>
          <Waterfall reward={state.reward} open={!state.ended} />
        </section>
      )}
      {state.spending.roles.length > 0 && (
        <section>
          <h2>Asked of models</h2>
          <SpendingTable spending={state.spending} />
        </section>
      )}
      {state.failure && (
        <p class="fault">
          <b>
            <Untrusted text={state.failure.reason} />
          </b>{" "}
          <Untrusted text={state.failure.message} most={1200} />
        </p>
      )}
      {state.ended && (
        <p class="ending">
          <Verdict
            row={{ success: state.success, reward: state.reward?.total ?? null, failure: state.failure?.reason ?? "" }}
          />{" "}
          <span class="dim">ended by</span> <Untrusted text={state.reason} />{" "}
          {state.answer !== null && (
            <>
              <span class="dim">with the answer</span> <Untrusted text={state.answer} />
            </>
          )}
        </p>
      )}
    </div>
  );
}

/** One step: what was said, what was read of it, when its calls ran, what the model sees next. */
function Played({ turn }: { turn: PlayTurn }) {
  const calls: CallRow[] = turn.schedule.map((call, index) => ({
      turn: turn.index,
      index,
      attempts: 1,
      cached: false,
      chars: 0,
      ...call,
    })),
    [origin, end] = calls.length ? spanOf(calls) : [0, 1],
    parse = turn.parse;
  const read = [
    plural(parse.calls.length, "call"),
    parse.thinking && "thinking",
    parse.content.trim() && "text",
    parse.is_cut && "cut open",
    ...parse.leniencies,
  ]
    .filter(Boolean)
    .join(", ");
  return (
    <article class="card turn">
      <header>
        <h2>Turn {turn.index + 1}</h2>
        <span class="dim">read as {read}</span>
        <span class="end">
          <Num class="dim">{seconds(turn.seconds)}</Num>
        </span>
      </header>
      <UntrustedBlock text={turn.action} label="action" />
      {parse.calls.map((call, i) => (
        <section key={i} class={names("call", turn.results[i]?.outcome !== "ok" && "failed")}>
          <h3>
            <b>
              <Untrusted text={call.name ?? "unreadable call"} most={60} />
            </b>
            <span class="brief">
              <Untrusted text={call.arguments ? JSON.stringify(call.arguments) : call.reason} most={200} />
            </span>
            <span class="end">
              {turn.results[i] && <Outcome word={turn.results[i].outcome} bare={turn.results[i].outcome === "ok"} />}
            </span>
          </h3>
          {turn.results[i] && (
            <div class="call-body">
              <UntrustedBlock text={turn.results[i].text} />
            </div>
          )}
        </section>
      ))}
      {calls.length > 0 && <Bars calls={calls} origin={origin} end={end} label="calls in time" />}
      {turn.observation && (
        <details class="observed">
          <summary>Observation, as the model sees it</summary>
          <UntrustedBlock text={turn.observation} />
        </details>
      )}
    </article>
  );
}
