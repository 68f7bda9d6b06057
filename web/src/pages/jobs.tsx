/** Processes that were started here: what they print, whether they run, how to stop them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, Fault, Loading, names, Num, Outcome, when, useNow } from "../bits";
import { ask, remove, useData, useKeys, type Refusal } from "../core";
import { Untrusted, UntrustedBlock } from "../text";
import type { Job, Run } from "../types";

/** The log of a job from its beginning on, asked for piece by piece; it scrolls along where its end is in view. */
export function JobLog({ id }: { id: string }) {
  const [text, setText] = useState(""),
    [state, setState] = useState("running"),
    [fault, setFault] = useState<Refusal>(),
    at = useRef(0),
    box = useRef<HTMLDivElement>(null),
    stick = useRef(true);
  useEffect(() => {
    let on = true,
      timer = 0;
    const more = async () => {
      try {
        const part = await ask<{ text: string; offset: number; state: string }>(`/api/jobs/${id}?offset=${at.current}`);
        if (!on) return;
        const grew = part.offset > at.current;
        at.current = part.offset;
        if (part.text) setText(old => (old + part.text).slice(-400_000));
        setState(part.state);
        setFault(undefined);
        if (part.state !== "ended" || grew) timer = setTimeout(more, grew ? 250 : 1000) as unknown as number;
      } catch (error) {
        if (on) {
          setFault(error as Refusal);
          timer = setTimeout(more, 3000) as unknown as number;
        }
      }
    };
    void more();
    return () => {
      on = false;
      clearTimeout(timer);
    };
  }, [id]);
  useEffect(() => {
    if (stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <section class="log">
      <p class="line">
        <Outcome word={state} />
        {state === "running" && <button onClick={() => remove(`/api/jobs/${id}`).catch(setFault)}>Stop</button>}
      </p>
      <Fault fault={fault} />
      <div
        class="scroll"
        ref={box}
        tabIndex={0}
        role="region"
        aria-label="Log"
        onScroll={() => {
          const b = box.current!;
          stick.current = b.scrollTop + b.clientHeight > b.scrollHeight - 40;
        }}
      >
        <UntrustedBlock text={text.slice(-20_000) || "…"} />
      </div>
    </section>
  );
}

export function Jobs() {
  const now = useNow(2000),
    asked = useData<{ jobs: Job[] }>("/api/jobs", now),
    [chosen, setChosen] = useState(""),
    jobs = asked.data?.jobs,
    at = jobs?.find(job => job.id === chosen) ?? jobs?.[0];
  const runs = useData<{ runs: Run[] }>(at?.run ? "/api/runs" : null, at?.state),
    run = runs.data?.runs.find(one => one.path === at?.run);
  const move = (by: number) => {
    const all = [...document.querySelectorAll<HTMLElement>(".jobs button.link")],
      i = all.indexOf(document.activeElement as HTMLElement);
    all[Math.max(0, Math.min(all.length - 1, i + by))]?.focus();
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
  return (
    <main id="main" class="page" tabIndex={-1}>
      <div class="title">
        <h1>Jobs</h1>
      </div>
      <Fault fault={asked.fault} />
      {!jobs ? (
        !asked.fault && <Loading />
      ) : !at ? (
        <Empty>Nothing was started here. The workbench's checks start jobs.</Empty>
      ) : (
        <div class="columns wide-right">
          <div class="scroll" role="region" aria-label="Jobs" tabIndex={0}>
            <table class="jobs">
              <thead>
                <tr>
                  <th scope="col">job</th>
                  <th scope="col">state</th>
                  <th scope="col">started</th>
                </tr>
              </thead>
              <tbody>
                {jobs.map(job => (
                  <tr key={job.id} class={names(job === at && "current")}>
                    <td>
                      <button class="link" aria-pressed={job === at} onClick={() => setChosen(job.id)}>
                        <b>{job.kind}</b> <Num class="dim">{job.id}</Num>
                      </button>
                    </td>
                    <td>
                      <Outcome word={job.state} />
                      {job.code !== null && <span class="dim num"> {job.code}</span>}
                    </td>
                    <td class="dim nowrap">{when(job.started)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <div>
            <p class="argv">
              <code>
                <Untrusted text={at.argv.join(" ")} most={600} />
              </code>
            </p>
            {run && (
              <p>
                <a href={`/r/${run.key}`}>Open its run</a>
              </p>
            )}
            <JobLog key={at.id} id={at.id} />
          </div>
        </div>
      )}
    </main>
  );
}
