/** A spec, its faults at the place, what it compiles to, an episode of it by hand, and its checks. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, Facts, Fault, Loading, names, Num, plural, Tabs } from "../bits";
import { go, param, post, put, query, say, useData, useKeys, type Refusal } from "../core";
import type { Editor } from "../editor";
import { Untrusted, UntrustedBlock } from "../text";
import type { Compiled, Diagnosis, Job, Plain, SpecFault } from "../types";
import { ToolForms } from "./forms";
import { JobLog } from "./jobs";
import { Play } from "./play";

const TABS = ["compiled", "tools", "play", "checks"] as const;
const nonce = (): string => document.querySelector<HTMLMetaElement>("meta[name=rlenv-nonce]")?.content ?? "";

export function Workbench({ search }: { search: string }) {
  const specs = useData<{ specs: { path: string; name: string }[] }>("/api/specs"),
    path = param(search, "spec"),
    [tab, setTab] = useState<string>("compiled");
  useEffect(() => {
    const first = specs.data?.specs[0];
    if (!path && first) go(`/w${query({ spec: first.path })}`, { replace: true });
  }, [specs.data, path]);
  return (
    <main id="main" class="workbench" tabIndex={-1}>
      {path ? (
        <Bench key={path} path={path} specs={specs.data?.specs ?? []} tab={tab} onTab={setTab} />
      ) : (
        <div class="page">
          <h1>Workbench</h1>
          <Fault fault={specs.fault} />
          {specs.data ? (
            <Empty>No specs below the folders that the viewer was given.</Empty>
          ) : (
            !specs.fault && <Loading />
          )}
        </div>
      )}
    </main>
  );
}

function Bench({
  path,
  specs,
  tab,
  onTab,
}: {
  path: string;
  specs: { path: string; name: string }[];
  tab: string;
  onTab: (tab: string) => void;
}) {
  const asked = useData<{ text: string; version: string }>(`/api/spec${query({ path })}`),
    [text, setText] = useState<string | null>(null),
    [faults, setFaults] = useState<SpecFault[]>([]),
    [state, setState] = useState<"" | "checking" | "checked">(""),
    [saved, setSaved] = useState<string | null>(null),
    [refused, setRefused] = useState<Refusal>();
  const box = useRef<HTMLDivElement>(null),
    editor = useRef<Editor | null>(null),
    turn = useRef(0),
    version = useRef(""),
    sending = useRef(false),
    now = text ?? asked.data?.text ?? "",
    dirty = text !== null && text !== saved,
    wrong = faults.filter(fault => fault.level !== "warning"),
    odd = faults.length - wrong.length;
  const check = async (full: boolean) => {
    const mine = ++turn.current;
    try {
      const found = await post<Diagnosis>("/api/language/diagnose", { path, text: editor.current!.text(), full });
      if (mine !== turn.current || !editor.current || found.superseded) return;
      setFaults(found.faults);
      editor.current.faults(found.faults);
      setRefused(undefined);
      if (full) setState("checked");
    } catch (error) {
      if (mine === turn.current) setRefused(error as Refusal);
    }
  };
  const save = async () => {
    if (sending.current) return; // a second one would name the version that the first one replaces
    sending.current = true;
    try {
      const written = editor.current!.text(),
        body = { text: written, version: version.current };
      version.current = (await put<{ version: string }>(`/api/spec${query({ path })}`, body)).version;
      setSaved(written);
      say("Saved.");
      check(true);
    } catch (error) {
      setRefused(error as Refusal);
    } finally {
      sending.current = false;
    }
  };
  const saving = useRef(save);
  saving.current = save;
  useEffect(() => {
    if (!asked.data || !box.current || editor.current) return undefined;
    let on = true;
    const first = asked.data.text,
      ask = (what: string) => (text: string, line: number, column: number) =>
        post<never>(`/api/language/${what}`, { path, text, line, column });
    version.current = asked.data.version;
    setSaved(first);
    import(new URL("editor.js", import.meta.url).href).then(module => {
      if (!on || !box.current) return;
      editor.current = (module as typeof import("../editor")).mount(box.current, {
        text: first,
        nonce: nonce(),
        complete: ask("complete"),
        hover: ask("hover"),
        onChange: setText,
        onSave: () => void saving.current(),
      });
      const held = editor.current.text(); // the editor has line breaks of its own
      setSaved(held);
      setText(held);
    });
    return () => {
      on = false;
      editor.current?.destroy();
      editor.current = null;
    };
  }, [!!asked.data]);
  useEffect(() => {
    if (text === null) return undefined;
    setState("checking");
    const soon = setTimeout(() => void check(false), 200),
      later = setTimeout(() => void check(true), 1000);
    return () => {
      clearTimeout(soon);
      clearTimeout(later);
    };
  }, [text]);
  useEffect(() => {
    const warn = (event: BeforeUnloadEvent) => {
      if (dirty) event.preventDefault();
    };
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, [dirty]);
  const step = (by: number) => {
    const i = faults.length ? (by + faults.length) % faults.length : -1;
    if (i >= 0) editor.current?.go(faults[i]!.line, faults[i]!.column);
  };
  useKeys({ e: () => step(0), "/": () => editor.current?.focus() });
  return (
    <>
      <h1 class="sr">Workbench</h1>
      <div class="toolbar bench-bar">
        <label class="pick">
          spec{" "}
          <select
            value={path}
            onChange={event => {
              if (!dirty || confirm("Leave without saving?")) go(`/w${query({ spec: event.currentTarget.value })}`);
            }}
          >
            {specs.some(s => s.path === path) ? null : <option value={path}>{path}</option>}
            {specs.map(spec => (
              <option key={spec.path} value={spec.path}>
                {spec.name}
              </option>
            ))}
          </select>
        </label>
        <span class="faults-state" role="status">
          {wrong.length ? (
            <span class="bad">▲ {plural(wrong.length, "fault")}</span>
          ) : state === "checked" ? (
            <span class="good">● no fault</span>
          ) : (
            <span class="dim">checking…</span>
          )}
          {odd > 0 && <span class="warn"> ▲ {plural(odd, "warning")}</span>}
        </span>
        <span class="end">
          <span class="dim">{dirty ? "not saved" : ""}</span>
          <button class="primary" disabled={!dirty} onClick={save}>
            Save
          </button>
        </span>
      </div>
      <Fault fault={asked.fault ?? refused} />
      <div class="bench">
        <div class="left">
          <div class="editor" ref={box} />
          {faults.length > 0 && (
            <ul class="faults" aria-label="Faults">
              {faults.slice(0, 50).map((fault, i) => (
                <li key={i}>
                  <button class="link" onClick={() => editor.current?.go(fault.line, fault.column)}>
                    <span class="num dim">
                      {fault.line}:{fault.column}
                    </span>
                    <span>
                      {fault.level === "warning" && <b class="warn">warning </b>}
                      <Untrusted text={fault.message} most={400} />
                      {fault.hint && (
                        <span class="dim">
                          {" "}
                          <Untrusted text={fault.hint} most={300} />
                        </span>
                      )}
                    </span>
                  </button>
                </li>
              ))}
            </ul>
          )}
        </div>
        <div class="right">
          <Tabs label="What the spec makes" tabs={TABS} at={tab} onTab={onTab} />
          <div id="panel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
            {tab === "compiled" ? (
              <CompiledTab
                path={path}
                text={now}
                still={state !== "checking" && !wrong.length}
                state={wrong.length ? "" : state}
              />
            ) : tab === "tools" ? (
              <ToolForms
                key={path}
                path={path}
                text={now}
                onText={(next, was) => {
                  if (editor.current?.text() !== was) return false;
                  editor.current.replace(next);
                  return true;
                }}
              />
            ) : tab === "play" ? (
              <Play spec={path} text={now} />
            ) : (
              <Checks spec={path} dirty={dirty} onSave={save} />
            )}
          </div>
        </div>
      </div>
    </>
  );
}

function CompiledTab({ path, text, still, state }: { path: string; text: string; still: boolean; state: string }) {
  const [made, setMade] = useState<Compiled | null>(null),
    [fault, setFault] = useState<Refusal>();
  useEffect(() => {
    if (!text || !still) return undefined;
    const stop = new AbortController();
    post<Compiled>("/api/language/compile", { path, text }, stop.signal).then(
      found => {
        if (!found.superseded) {
          setMade(found);
          setFault(undefined);
        }
      },
      error => {
        if (error.name !== "AbortError") setFault(error);
      },
    );
    return () => stop.abort();
  }, [path, text, still]);
  if (!made)
    return fault ? (
      <Fault fault={fault} />
    ) : (
      <Empty>
        {still ? "Compiling…" : state === "checking" ? "Checking…" : "Compiles as soon as there is no fault."}
      </Empty>
    );
  const tool = (schema: Plain): { name?: string; description?: string; parameters?: Plain } => {
    const s = schema as Record<string, Plain>;
    return (s?.function ?? s) as never;
  };
  return (
    <div class={names("stack", !still && "stale")}>
      <Fault fault={fault} />
      <section>
        <h2>Prompt</h2>
        {made.prompt.map((m, i) => (
          <article key={i} class="card">
            <header>
              <h3>{m.role}</h3>
            </header>
            <UntrustedBlock text={m.content} plain />
          </article>
        ))}
      </section>
      <section>
        <h2>Tools</h2>
        {made.tools.length ? (
          made.tools.map((schema, i) => (
            <details key={i} open={made.tools.length < 4}>
              <summary>
                <b>
                  <Untrusted text={tool(schema).name} />
                </b>{" "}
                <span class="dim">
                  <Untrusted text={tool(schema).description} most={200} />
                </span>
              </summary>
              <UntrustedBlock text={JSON.stringify(tool(schema).parameters ?? schema, null, 2)} />
            </details>
          ))
        ) : (
          <Empty>none</Empty>
        )}
      </section>
      <section>
        <h2>Tasks</h2>
        <p class="dim">
          {Array.isArray(made.splits)
            ? made.splits.join(", ")
            : Object.entries(made.splits ?? {})
                .map(([name, n]) => `${name}: ${n}`)
                .join(", ")}
        </p>
        {made.tasks.slice(0, 20).map(task => (
          <details key={task.index} open={task.index === made.tasks[0]!.index}>
            <summary>row {task.index}</summary>
            <Facts facts={task.row} />
          </details>
        ))}
      </section>
    </div>
  );
}

const CHECKS: { kind: string; word: string; options: Record<string, Plain>; what: string }[] = [
  { kind: "validate", word: "Validate", options: {}, what: "every fault, and whether the tools answer" },
  { kind: "audit", word: "Audit", options: {}, what: "attacks the reward and prints a report card" },
  { kind: "eval", word: "Eval 20", options: { n: 20, policy: "oracle" }, what: "twenty episodes by the oracle" },
  { kind: "train", word: "Train", options: {}, what: "a training run on veRL, to be watched and stopped under Jobs" },
];
function Checks({ spec, dirty, onSave }: { spec: string; dirty: boolean; onSave: () => Promise<void> }) {
  const [job, setJob] = useState<Job | null>(null),
    [fault, setFault] = useState<Refusal>();
  const start = async (kind: string, options: Record<string, Plain>) => {
    if (dirty) await onSave();
    const name = spec
        .split("/")
        .pop()!
        .replace(/\.ya?ml$/, ""),
      at = new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-");
    const out =
      kind === "eval" ? { out: `runs/${name}-${at}` } : kind === "train" ? { output: `runs/${name}-${at}` } : {};
    post<{ id: string }>("/api/jobs", { kind, spec, options: { ...options, ...out } }).then(({ id }) => {
      setFault(undefined);
      setJob({ id, kind, argv: [], state: "running", started: null, run: null, code: null });
    }, setFault);
  };
  return (
    <div class="stack">
      <ul class="checks">
        {CHECKS.map(check => (
          <li key={check.kind}>
            <button onClick={() => void start(check.kind, check.options)}>{check.word}</button>
            <span class="dim">{check.what}</span>
          </li>
        ))}
      </ul>
      {dirty && <p class="dim">What is not saved is saved first.</p>}
      <Fault fault={fault} />
      {job && (
        <>
          <p>
            <b>{job.kind}</b> <Num class="dim">job {job.id}</Num> <a href="/jobs">all jobs</a>
          </p>
          <JobLog key={job.id} id={job.id} />
        </>
      )}
    </div>
  );
}
