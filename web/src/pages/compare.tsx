/** Two runs: what differs in what made them, then what changed, task by task. */
import { useState } from "preact/hooks";
import { compact, count, Empty, Fault, Loading, names, num, Num, Panel, percent, plural, signed, Tabs } from "../bits";
import { go, rawParam, useData, useKeys } from "../core";
import { Grid, type Column } from "../grid";
import { ShortId, Untrusted } from "../text";
import { Peek } from "./peek";
import type { Comparison, Run } from "../types";

type Task = Comparison["tasks"][number];
const KINDS = ["broken", "fixed", "worse", "better", "same", "all"] as const;
const side = (run: string, at: Task["a"]) => (
  <a href={`/r/${run}/e/${encodeURIComponent(at.id)}`}>
    <span class={names("num", at.success === false && "bad", at.success === true && "good")}>
      {at.reward === null ? "invalid" : num(at.reward)}
    </span>{" "}
    <span class="dim">
      <ShortId id={at.id} />
    </span>
  </a>
);

export function Compare({ search }: { search: string }) {
  const a = rawParam(search, "a"),
    b = rawParam(search, "b"),
    asked = useData<Comparison>(a && b ? `/api/compare?a=${a}&b=${b}` : null),
    runs = useData<{ runs: Run[] }>("/api/runs"),
    data = asked.data,
    [kind, setKind] = useState<string>("broken"),
    [selected, setSelected] = useState("");
  useKeys({ j: () => document.querySelector<HTMLElement>(".grid [role=row][tabindex='0']")?.focus() });
  const pick = (name: "a" | "b", value: string) => (
    <label class="pick">
      {name.toUpperCase()}{" "}
      <select
        value={value}
        onChange={event =>
          go(
            `/compare?a=${name === "a" ? event.currentTarget.value : a}&b=${name === "b" ? event.currentTarget.value : b}`,
          )
        }
      >
        <option value="">choose a run</option>
        {runs.data?.runs.map(run => (
          <option key={run.key} value={run.key}>
            {run.name}
          </option>
        ))}
      </select>
    </label>
  );
  const tasks = data?.tasks.filter(task => kind === "all" || task.kind === kind) ?? [],
    id = (task: Task) => `${task.split}/${task.task}/${task.seed}`;
  const lockOf = (key: string) => runs.data?.runs.find(run => run.key === key)?.lock;
  const columns: Column<Task>[] = [
    {
      key: "kind",
      label: "change",
      width: "6rem",
      sortable: false,
      draw: task => (
        <span
          class={names(
            "outcome",
            task.kind === "broken" || task.kind === "worse" ? "bad" : task.kind === "same" ? "quiet" : "good",
          )}
        >
          <i aria-hidden="true">
            {task.kind === "broken" || task.kind === "worse" ? "▼" : task.kind === "same" ? "=" : "▲"}
          </i>
          {task.kind}
        </span>
      ),
    },
    {
      key: "task",
      label: "task",
      width: "minmax(8rem,1fr)",
      sortable: false,
      draw: task => (
        <>
          <Untrusted text={task.split} /> {task.task} <span class="dim">seed {task.seed}</span>
        </>
      ),
    },
    { key: "a", label: "A", width: "minmax(9rem,1fr)", sortable: false, draw: task => side(a, task.a) },
    { key: "b", label: "B", width: "minmax(9rem,1fr)", sortable: false, draw: task => side(b, task.b) },
    {
      key: "change",
      label: "reward",
      width: "6rem",
      right: true,
      sortable: false,
      draw: task => (task.a.reward !== null && task.b.reward !== null ? signed(task.b.reward - task.a.reward) : "–"),
    },
  ];
  return (
    <main id="main" class="page compare" tabIndex={-1}>
      <div class="title">
        <h1>Compare</h1>
        <span class="end picks">
          {pick("a", a)}
          {pick("b", b)}
        </span>
      </div>
      <Fault fault={asked.fault} />
      {!a || !b ? (
        <Empty>Choose two runs.</Empty>
      ) : !data ? (
        !asked.fault && <Loading />
      ) : (
        <>
          <Panel title="What made them differ" note={plural(data.lock.length, "difference")}>
            {data.lock.length === 0 ? (
              <Empty>
                {lockOf(a) === lockOf(b)
                  ? "The locks are equal: the same spec, data, prompts, tools, rewards, policy and packages."
                  : "The runs have different locks, but what they say was not kept."}
              </Empty>
            ) : (
              <div class="scroll" role="region" aria-label="Differences of the locks" tabIndex={0}>
                <table>
                  <thead>
                    <tr>
                      <th scope="col">section</th>
                      <th scope="col">key</th>
                      <th scope="col">A</th>
                      <th scope="col">B</th>
                    </tr>
                  </thead>
                  <tbody>
                    {data.lock.map((item, i) => (
                      <tr key={i}>
                        <td class="dim">
                          {i === 0 || data.lock[i - 1]!.section !== item.section ? (
                            <Untrusted text={item.section} />
                          ) : (
                            ""
                          )}
                        </td>
                        <td>
                          <Untrusted text={item.key} />
                        </td>
                        <td>
                          <code>
                            <Untrusted text={item.a === null ? "–" : compact(item.a)} most={160} />
                          </code>
                        </td>
                        <td>
                          <code>
                            <Untrusted text={item.b === null ? "–" : compact(item.b)} most={160} />
                          </code>
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </Panel>
          <div class="figures">
            <div>
              <span>success, B − A</span>
              <b class={(data.success.change ?? 0) < 0 ? "bad" : (data.success.change ?? 0) > 0 ? "good" : ""}>
                {data.success.change === null ? "–" : `${signed(100 * data.success.change, 1)} points`}
              </b>
              <small>
                {data.success.low !== null &&
                  `${signed(100 * data.success.low, 1)} to ${signed(100 * (data.success.high ?? 0), 1)}`}
                {data.success.p !== null && `, p ${num(data.success.p, 3)}`}
              </small>
              {data.success.invalid > 0 && data.success.bounds && (
                <small>
                  {signed(100 * data.success.bounds[0], 1)} to {signed(100 * data.success.bounds[1], 1)} with{" "}
                  {plural(data.success.invalid, "pair")} of which a side is invalid
                </small>
              )}
            </div>
            <div>
              <span>success</span>
              <b>
                {percent(data.success.a, 1)} → {percent(data.success.b, 1)}
              </b>
              <small>
                {plural(data.pairs, "pair")}
                {data.asked_otherwise > 0 && `, ${count(data.asked_otherwise)} asked something else in B`}
              </small>
            </div>
            <div>
              <span>reward, B − A</span>
              <b>{signed(data.reward.change)}</b>
              <small>{data.reward.low !== null && `${signed(data.reward.low)} to ${signed(data.reward.high)}`}</small>
            </div>
            <div>
              <span>fixed · broken · same</span>
              <b>
                <span class="good">{count(data.success.fixed)}</span> ·{" "}
                <span class="bad">{count(data.success.broken)}</span> · {count(data.success.same)}
              </b>
              <small>p by sign flips of tasks</small>
            </div>
            <div>
              <span>unpaired</span>
              <b>
                {count(data.unpaired.a)} · {count(data.unpaired.b)}
              </b>
              <small>in A, in B; not counted</small>
            </div>
          </div>
          <Tabs label="Tasks by what changed" tabs={KINDS} at={kind} onTab={setKind} />
          <div id="panel" role="tabpanel" aria-labelledby={`tab-${kind}`}>
            {tasks.length === 0 ? (
              <Empty>None.</Empty>
            ) : (
              <div class="tasks" style={{ height: `${Math.min(12, tasks.length) * 30 + 34}px` }}>
                <Grid
                  label="Tasks"
                  columns={columns}
                  total={tasks.length}
                  source={tasks.length + kind}
                  load={(offset, limit) => Promise.resolve(tasks.slice(offset, offset + limit))}
                  id={id}
                  sort=""
                  onSort={() => undefined}
                  selected={selected}
                  onSelect={task => setSelected(id(task))}
                  onOpen={task => go(`/r/${b}/e/${encodeURIComponent(task.b.id)}`)}
                />
              </div>
            )}
          </div>
          {selected && <Pair a={a} b={b} task={data.tasks.find(task => id(task) === selected)} />}
          <p class="dim">
            {data.paired_by === "seed"
              ? "Only equal splits, tasks and seeds count as pairs."
              : "The runs share no seed: the samples of a task are paired in their order."}
          </p>
        </>
      )}
    </main>
  );
}
function Pair({ a, b, task }: { a: string; b: string; task: Task | undefined }) {
  if (!task) return null;
  return (
    <Panel
      title="Side by side"
      note={
        <Num>
          {task.split} {task.task}
        </Num>
      }
    >
      <div class="pair">
        <Side run={a} id={task.a.id} name="A" />
        <Side run={b} id={task.b.id} name="B" />
      </div>
    </Panel>
  );
}
const Side = ({ run, id, name }: { run: string; id: string; name: string }) => (
  <section class="peek inline" aria-label={name}>
    <Peek run={run} id={id} row={null} />
  </section>
);
