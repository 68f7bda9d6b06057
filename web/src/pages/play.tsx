/** An episode of the spec, step by step: what was parsed, when calls ran, what came back, the terms so far. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, Fault, names, Num, Outcome, plural, seconds } from "../bits";
import { post, remove, type Refusal } from "../core";
import { Untrusted, UntrustedBlock } from "../text";
import type { CallRow, PlayState } from "../types";
import { Bars, spanOf } from "./conversation";
import { Waterfall } from "./reward";

const POLICIES = [["you", "by hand"], ["oracle", "the oracle"], ["openai", "an endpoint"]] as const;

export function Play({ spec, text }: { spec: string; text: string }) {
  const [split, setSplit] = useState(""), [task, setTask] = useState(0), [seed, setSeed] = useState(0), [policy, setPolicy] = useState("you"), [url, setUrl] = useState(""), [model, setModel] = useState("");
  const [session, setSession] = useState(""), [state, setState] = useState<PlayState | null>(null), [action, setAction] = useState(""), [busy, setBusy] = useState(false), [fault, setFault] = useState<Refusal>(), open = useRef(""), said = useRef<HTMLTextAreaElement>(null);
  useEffect(() => () => { if (open.current) void remove(`/api/play/${open.current}`).catch(() => undefined); }, []);
  const doing = async (work: () => Promise<void>) => { setBusy(true); setFault(undefined); try { await work(); } catch (error) { setFault(error as Refusal); } setBusy(false); };
  const start = () => doing(async () => {
    if (open.current) await remove(`/api/play/${open.current}`).catch(() => undefined);
    const made = await post<{ session: string; state: PlayState }>("/api/play", { spec, text, ...(split ? { split } : {}), task, seed, policy, ...(policy === "openai" ? { base_url: url, model } : {}) });
    open.current = made.session; setSession(made.session); setState(made.state); setAction("");
    requestAnimationFrame(() => said.current?.focus());
  });
  const step = () => doing(async () => { const made = await post<{ state: PlayState }>(`/api/play/${session}/step`, policy === "you" ? { action } : {}); setState(made.state); setAction(""); });
  return <div class="stack play">
    <form class="toolbar" onSubmit={event => { event.preventDefault(); void start(); }}>
      <label>policy <select value={policy} onChange={event => setPolicy(event.currentTarget.value)}>{POLICIES.map(([value, word]) => <option key={value} value={value}>{word}</option>)}</select></label>
      <label>split <input size={6} value={split} placeholder="first" onInput={event => setSplit(event.currentTarget.value)} /></label><label>row <input type="number" min={0} value={task} onInput={event => setTask(Number(event.currentTarget.value))} /></label><label>seed <input type="number" value={seed} onInput={event => setSeed(Number(event.currentTarget.value))} /></label>
      {policy === "openai" && <><label>endpoint <input value={url} placeholder="http://127.0.0.1:8000/v1" onInput={event => setUrl(event.currentTarget.value)} /></label><label>model <input value={model} onInput={event => setModel(event.currentTarget.value)} /></label></>}
      <button class="primary" disabled={busy}>{session ? "Start again" : "Start"}</button></form>
    <Fault fault={fault} />
    {!state ? <Empty>An episode opens with the text in the editor, saved or not.</Empty> : <Shown state={state} />}
    {state && !state.ended && <form class="say" onSubmit={event => { event.preventDefault(); void step(); }}>{policy === "you" && <><textarea ref={said} rows={5} aria-label="What the model says" placeholder="What the model says, calls and answer included" value={action} onInput={event => setAction(event.currentTarget.value)} onKeyDown={event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); void step(); } }} /></>}<button class="primary" disabled={busy || (policy === "you" && !action)}>{busy ? "…" : "Step"}</button></form>}
  </div>;
}

function Shown({ state }: { state: PlayState }) {
  const calls: CallRow[] = state.schedule.map((call, index) => ({ turn: Math.max(0, state.turns.length - 1), index, outcome: state.turns[state.turns.length - 1]?.results[index]?.outcome ?? "ok", attempts: 1, cached: false, chars: 0, ...call, waited: call.waited ?? 0 }));
  const [origin, end] = calls.length ? spanOf(calls) : [0, 1], parse = state.parse, seen = typeof state.observation === "string" ? state.observation : state.observation?.text ?? "";
  const open = useRef<HTMLDivElement>(null);
  useEffect(() => { open.current?.lastElementChild?.scrollIntoView({ block: "nearest" }); }, [state]);
  return <div class="cards" ref={open}>
    {state.messages.map((m, i) => <article key={i} class={names("card", m.role)}><header><h2>{m.role}</h2></header><UntrustedBlock text={m.content} plain={m.role !== "tool"} /></article>)}
    {state.turns.map(turn => <article key={turn.index} class="card turn"><header><h2>Turn {turn.index + 1}</h2><span class="end"><Num class="dim">{seconds(turn.seconds)}</Num></span></header><UntrustedBlock text={turn.action} />{turn.results.map((result, i) => <section key={i} class={names("call", result.outcome !== "ok" && "failed")}><h3><b><Untrusted text={result.name} /></b><span class="end"><Outcome word={result.outcome} bare /></span></h3><UntrustedBlock text={result.text} /></section>)}</article>)}
    {parse && <section class="parsed"><h2>Parse</h2><p>{plural(parse.calls.length, "call")}{parse.thinking ? ", thinking" : ""}{parse.is_cut ? ", cut open" : ""}{parse.leniencies?.length ? `, ${parse.leniencies.join(", ")}` : ""}</p>{parse.calls.map((call, i) => <p key={i} class={call.arguments ? "used" : "used failed"}><code><Untrusted text={call.arguments ? `${call.name}(${JSON.stringify(call.arguments)})` : call.reason} most={300} /></code></p>)}</section>}
    {calls.length > 0 && <section><h2>Schedule</h2><Bars calls={calls} origin={origin} end={end} label="calls in time" /></section>}
    {seen && <section><h2>Observation</h2><UntrustedBlock text={seen} /></section>}
    {state.reward && <section><h2>Reward {state.ended ? "" : "so far"}</h2><Waterfall reward={state.reward} /></section>}
    {state.ended && <p class="ending"><b>Ended</b> <span class="dim">by</span> <Untrusted text={state.reason} /></p>}
  </div>;
}
