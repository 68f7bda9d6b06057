/** One episode: what was said, what is trained, why this reward, when it happened. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import {
  count,
  Empty,
  Fact,
  Facts,
  Fault,
  Loading,
  names,
  Num,
  Outcome,
  plural,
  seconds,
  signed,
  Tabs,
  Table,
  Verdict,
} from "../bits";
import { ask, go, param, query, say, useData, useKept, useKeys, usePlace } from "../core";
import { Untrusted, UntrustedBlock } from "../text";
import type { Episode as Whole, Plain, RunPage, Trajectory } from "../types";
import { Bars, MessageCard, snippets, spanOf, TurnCard, type Shown } from "./conversation";
import { RewardTab, Waterfall } from "./reward";
import { SpendingTable } from "./spending";
import { TokensTab } from "./tokens";

const TABS = ["conversation", "tokens", "reward", "timing", "raw", "lock"] as const;
type Tab = (typeof TABS)[number];
const WINDOW = 300;
const shift = (place: string): number => Number(/^t(\d+)/.exec(place)?.[1] ?? 1) - 1;

function Timing({ data, record }: { data: Whole; record: Trajectory }) {
  const [origin, end] = data.calls.length ? spanOf(data.calls) : [0, 1],
    known = data.calls.some(c => c.started !== null),
    turns = [...new Set(data.calls.map(c => c.turn))];
  const longest = Math.max(1e-6, ...data.calls.map(c => c.seconds));
  const inCalls = data.calls.reduce((sum, c) => sum + c.seconds, 0),
    waited = data.calls.reduce((sum, c) => sum + (c.waited || 0), 0);
  return (
    <div class="stack">
      <div class="figures small">
        <div>
          <span>episode</span>
          <b>{seconds(record.seconds)}</b>
        </div>
        <div>
          <span>in calls, added up</span>
          <b>{seconds(inCalls)}</b>
        </div>
        <div>
          <span>of it waited</span>
          <b>{seconds(waited)}</b>
        </div>
        <div>
          <span>calls</span>
          <b>{data.calls.length}</b>
        </div>
      </div>
      <div class="legend" role="group" aria-label="legend">
        <span>
          <i class="swatch wait" /> waited
        </span>
        <span>
          <i class="swatch run" /> running
        </span>
        <span>
          <i class="swatch run failed" /> failed
        </span>
        <span>
          <i class="swatch run timeout" /> timeout
        </span>
        {!known && data.calls.length > 0 && (
          <span class="dim">when calls began was not recorded: bars start with their turn</span>
        )}
      </div>
      {data.calls.length === 0 ? (
        <Empty>No calls.</Empty>
      ) : (
        turns.map(turn => {
          const calls = data.calls.filter(c => c.turn === turn),
            [a, b] = known ? [origin, end] : [0, longest];
          return (
            <section key={turn} class="timed">
              <h2>
                <a href={`#t${turn + 1}`}>{`Turn ${turn + 1}`}</a>{" "}
                <Num class="dim">{seconds(record.turns[turn]?.seconds)}</Num>
              </h2>
              <Bars calls={calls} origin={a} end={b} label={`calls of turn ${turn + 1}`} />
            </section>
          );
        })
      )}
      {data.spending.roles.length > 0 && (
        <section>
          <h2>Asked of models</h2>
          <SpendingTable spending={data.spending} />
        </section>
      )}
      {data.calls.length > 0 && (
        <details class="as-table">
          <summary>Table</summary>
          <Table
            label="Calls"
            head={[
              ["turn", "r"],
              ["call", "r"],
              ["tool"],
              ["outcome"],
              ["began", "r"],
              ["waited", "r"],
              ["time", "r"],
              ["attempts", "r"],
            ]}
            rows={data.calls.map(c => [
              c.turn + 1,
              c.index + 1,
              <Untrusted text={c.tool} />,
              <Outcome word={c.outcome} />,
              c.started === null ? "–" : seconds(c.started),
              seconds(c.waited),
              seconds(c.seconds),
              c.attempts,
            ])}
          />
        </details>
      )}
    </div>
  );
}

function Aside({
  data,
  record,
  hot,
  onHot,
  onShow,
}: {
  data: Whole;
  record: Trajectory;
  hot: string;
  onHot: (term: string) => void;
  onShow: (term: string) => void;
}) {
  return (
    <aside class="beside" aria-label="Reward and outline">
      <section>
        <h2>Reward</h2>
        <Waterfall
          reward={record.reward}
          hot={hot}
          onHot={onHot}
          onShow={onShow}
          where={data.where}
          expected={data.expected}
        />
      </section>
      <section>
        <h2>Answer</h2>
        <p class="answer">
          {record.answer === null ? (
            <span class="dim">none was read</span>
          ) : (
            <Untrusted text={record.answer} most={600} />
          )}
        </p>
      </section>
      <section class="toc">
        <h2>Turns</h2>
        <ol>
          {record.turns.slice(0, 500).map(turn => (
            <li key={turn.index}>
              <a href={`#t${turn.index + 1}`}>
                <span class="num dim">{turn.index + 1}</span>
                <span class="what">
                  {turn.parsed.calls.length || turn.results.length ? (
                    <Untrusted
                      text={(turn.results.length ? turn.results : turn.parsed.calls)
                        .map(c => c.name ?? "unreadable")
                        .join(", ")}
                      most={48}
                    />
                  ) : (
                    <span class="dim">no call</span>
                  )}
                </span>
                {turn.results.some(r => r.outcome !== "ok") && (
                  <span class="bad" title="a call failed">
                    ▲
                  </span>
                )}
              </a>
            </li>
          ))}
        </ol>
      </section>
      <section>
        <h2>Task</h2>
        <Facts facts={record.task} />
      </section>
    </aside>
  );
}

export function Episode({ run, id, data: about }: { run: string; id: string; data: RunPage }) {
  const base = `/api/runs/${run}/e/${id}`,
    asked = useData<Whole>(base),
    data = asked.data,
    { search, hash } = usePlace(),
    name = decodeURIComponent(id);
  const tab = (TABS as readonly string[]).includes(param(search, "tab"))
    ? (param(search, "tab") as Tab)
    : "conversation";
  const [folded, setFolded] = useKept("folded", false),
    [over, setHot] = useState(""),
    [pinned, setPinned] = useState(""),
    hot = pinned || over,
    [find, setFind] = useState(param(search, "find")),
    [finding, setFinding] = useState(!!find),
    [at, setAt] = useState(-1),
    [from, setFrom] = useState(0),
    [marks, setMarks] = useKept<string[]>(`marks.${run}`, []),
    finder = useRef<HTMLFormElement>(null),
    box = useRef<HTMLInputElement>(null),
    foundAt = useRef(-1),
    waiting = useRef(0);
  const record = data?.row.id === name ? data.record : undefined,
    turns = record?.turns.length ?? 0;
  const to = (change: Record<string, string>, place = "") =>
    go(`/r/${run}/e/${id}${query({ tab: tab === "conversation" ? "" : tab, ...change })}${place && "#" + place}`, {
      replace: true,
    });
  const onTab = (next: string) => to({ tab: next === "conversation" ? "" : next });
  const bring = (place: string, focus = true) => {
    const card = document.getElementById(place);
    card?.scrollIntoView({ block: place.includes("c") ? "center" : "start" });
    if (focus) card?.focus({ preventScroll: true });
  };
  const turn = (to: number) => {
    const next = Math.max(0, Math.min(turns - 1, to));
    if (next < from || next >= from + WINDOW) setFrom(Math.floor(next / WINDOW) * WINDOW);
    setAt(next);
    requestAnimationFrame(() => bring(`t${next + 1}`));
  };
  useEffect(() => {
    setAt(-1);
    setFrom(0);
    setHot("");
    setPinned("");
    waiting.current = 0;
    // Who opened the finder before this ran goes on typing in it.
    if (document.activeElement !== box.current)
      document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
  }, [id]);
  useEffect(() => {
    if (!record || !/^t\d+(c\d+)?$/.test(hash)) return;
    if (tab !== "conversation") {
      to({ tab: "" }, hash);
      return;
    }
    const wanted = shift(hash);
    setAt(wanted);
    setFrom(Math.floor(wanted / WINDOW) * WINDOW);
    requestAnimationFrame(() => bring(hash));
  }, [hash, !!record, id]);
  const other = (place: string | null | undefined) =>
    place
      ? go(`/r/${run}/e/${encodeURIComponent(place)}${query({ tab: tab === "conversation" ? "" : tab })}`)
      : say("There is none.");
  const sample = (by: number) => {
    const ids = data?.group?.ids ?? [],
      i = ids.indexOf(name);
    other(ids[i + by]);
  };
  const error = () => {
    const bad = [...document.querySelectorAll<HTMLElement>("[data-error]")],
      here = document.activeElement as HTMLElement,
      i = bad.indexOf(here),
      next =
        i >= 0
          ? bad[(i + 1) % bad.length]
          : (bad.find(b => here.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING) ?? bad[0]);
    if (next) {
      bring(next.id);
      setAt(shift(next.id));
    } else say("No call failed.");
  };
  const showEvidence = (term: string) => {
    if (tab !== "conversation") to({ tab: "" });
    setPinned(pinned === term ? "" : term);
    if (pinned === term) return;
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        const mark = document.querySelector("mark.evidence.hot") ?? document.querySelector("mark.evidence");
        if (mark) mark.scrollIntoView({ block: "center" });
        else say("Its evidence is not located in the conversation.");
      }),
    );
  };
  const nextFound = (by: number) => {
    waiting.current = record ? 0 : by;
    if (!record) return;
    const all = document.querySelectorAll("mark.found");
    if (!all.length) {
      say("Nothing like that in the texts shown.");
      return;
    }
    foundAt.current = (foundAt.current + by + all.length) % all.length;
    all.forEach(m => m.classList.remove("here"));
    const mark = all[foundAt.current]!;
    mark.classList.add("here");
    mark.scrollIntoView({ block: "center" });
    say(`${foundAt.current + 1} of ${all.length}`);
  };
  useEffect(() => {
    if (record && waiting.current) nextFound(waiting.current);
  }, [record]);
  const mark = () => {
    setMarks(marks.includes(name) ? marks.filter(m => m !== name) : [...marks, name]);
    say(marks.includes(name) ? "The mark is gone." : "Marked.");
  };
  const copy = () => {
    const link = location.origin + location.pathname + location.search + (at >= 0 ? `#t${at + 1}` : "");
    (navigator.clipboard?.writeText(link) ?? Promise.reject()).then(
      () => say("The link is copied."),
      () => say(link),
    );
  };
  const group = data?.group ? `/r/${run}/g/${data.group.step}/${encodeURIComponent(data.group.group)}` : null;
  useKeys({
    j: () => turn(at + 1),
    "]": () => turn(at + 1),
    k: () => turn(at - 1),
    "[": () => turn(at - 1),
    J: () => other(data?.neighbours.next),
    K: () => other(data?.neighbours.prev),
    c: () => {
      setFolded(!folded);
      say(folded ? "Calls are open." : "Calls are folded.");
    },
    v: () => onTab("conversation"),
    t: () => onTab("tokens"),
    r: () => onTab("reward"),
    w: () => onTab("timing"),
    g: () => group && go(group),
    n: () => sample(1),
    p: () => sample(-1),
    e: error,
    m: mark,
    y: copy,
    f: () => {
      if (tab !== "conversation") onTab("conversation");
      setFinding(true);
      // At once, not with the next frame: what is typed in between would be taken for keys of the page.
      finder.current?.removeAttribute("hidden");
      box.current?.focus();
    },
    "/": () => go(`/r/${run}/episodes`),
  });
  const marksOf = useMemo(() => (data ? snippets(data) : []), [data]);
  const nested = useMemo(() => new Set(data?.nested), [data]);
  if (!data)
    return (
      <main id="main" class="page">
        {asked.fault ? <Fault fault={asked.fault} /> : <Loading />}
      </main>
    );
  const row = data.row,
    shown: Shown = {
      run,
      base,
      cuts: data.cuts ?? {},
      folded,
      find: find.length > 1 ? find : "",
      hot,
      marks: marksOf,
      nested,
      path: "",
      name: "",
    };
  let message = record?.messages.length ?? 0;
  const starts =
    record?.turns.map(t => {
      const mine = message;
      message += 1 + (t.observation?.messages.length ?? 0);
      return mine;
    }) ?? [];
  return (
    <main id="main" class="page episode" tabIndex={-1} aria-busy={asked.busy}>
      <div class="headline">
        <div>
          <h1>
            <Untrusted text={row.title || name} most={160} />
          </h1>
          <p class="line dim">
            <code>
              <Untrusted text={name} />
            </code>
            <Fact name="step">{count(row.step)}</Fact>
            <Fact name={row.split}>{row.task}</Fact>
            <Fact name="sample">{row.sample}</Fact>
            <Fact name="seed">{row.seed}</Fact>
            <Fact name="mode">{row.mode}</Fact>
            <Fact name="ended by">
              <Untrusted text={row.reason} most={40} />
            </Fact>
            <Fact name="took">{seconds(row.seconds)}</Fact>
            {row.tokens > 0 && <Fact name="tokens">{count(row.tokens)}</Fact>}
            {row.fate && <Outcome word={row.fate} />}
            {row.why && <Untrusted text={row.why} most={120} />}
            {row.advantage !== null && row.advantage !== undefined && (
              <Fact name="advantage">{signed(row.advantage, 3)}</Fact>
            )}
          </p>
        </div>
        <div class="score">
          <b class={names("num", row.reward === null ? "bad" : row.success ? "good" : "")}>
            {row.reward === null ? "invalid" : signed(row.reward)}
          </b>
          <Verdict row={row} />
        </div>
      </div>
      {(row.failure || asked.fault) && (
        <div class="fault" role="note">
          {row.failure ? (
            <>
              <b>
                <Untrusted text={row.failure} />
              </b>{" "}
              <Untrusted text={record?.failure?.message ?? row.failure_message} most={1200} />{" "}
              <span class="dim">The reward is invalid, so this episode is left out of training and of every mean.</span>
            </>
          ) : (
            asked.fault!.message
          )}
        </div>
      )}
      <div class="toolbar">
        <Tabs label="Parts of the episode" tabs={TABS} at={tab} onTab={onTab} />
        <span class="end buttons">
          {group && data.group!.samples > 1 && (
            <a class="button" href={group}>
              Group of {count(data.group!.samples)}
            </a>
          )}
          {tab === "conversation" && (
            <button onClick={() => setFolded(!folded)} aria-pressed={folded}>
              Fold calls
            </button>
          )}
          <button aria-pressed={marks.includes(name)} onClick={mark}>
            {marks.includes(name) ? "★ Marked" : "☆ Mark"}
          </button>
          <button onClick={copy}>Copy link</button>
          <button
            aria-label="Previous episode"
            disabled={!data.neighbours.prev}
            onClick={() => other(data.neighbours.prev)}
          >
            ‹
          </button>
          <button
            aria-label="Next episode"
            disabled={!data.neighbours.next}
            onClick={() => other(data.neighbours.next)}
          >
            ›
          </button>
        </span>
      </div>
      <form
        class="finder"
        role="search"
        ref={finder}
        hidden={!finding || tab !== "conversation"}
        onSubmit={event => {
          event.preventDefault();
          nextFound(1);
        }}
      >
        <input
          ref={box}
          type="search"
          aria-label="Find in the episode"
          placeholder="Find in the episode"
          value={find}
          onInput={event => {
            setFind(event.currentTarget.value);
            foundAt.current = -1;
          }}
          onKeyDown={event => {
            if (event.key === "Escape") {
              setFinding(false);
              setFind("");
            }
          }}
        />
        <button>Next</button>
        <button type="button" onClick={() => nextFound(-1)}>
          Previous
        </button>
        <button
          type="button"
          onClick={() => {
            setFinding(false);
            setFind("");
          }}
        >
          Close
        </button>
      </form>
      <div id="panel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={tab === "conversation" ? undefined : 0}>
        {!record ? (
          <Empty>
            {data.missing ? (
              <Untrusted text={data.missing} most={600} />
            ) : data.row.id === name ? (
              "Only this episode's row was kept, not its texts."
            ) : (
              "Loading…"
            )}
          </Empty>
        ) : tab === "conversation" ? (
          <div class="read-beside">
            <div class="cards">
              {from === 0 &&
                record.messages.map((m, i) => (
                  <MessageCard key={`m${i}`} message={m} path={`messages.${i}.content`} shown={shown} index={i} />
                ))}
              {from > 0 && (
                <button class="more" onClick={() => setFrom(from - WINDOW)}>
                  Earlier turns
                </button>
              )}
              {record.turns.slice(from, from + WINDOW).map(t => (
                <TurnCard
                  key={t.index}
                  turn={t}
                  calls={data.calls.filter(c => c.turn === t.index)}
                  reward={record.reward.turn_rewards[t.index]}
                  shown={shown}
                  message={starts[t.index]!}
                  current={t.index === at}
                />
              ))}
              {from + WINDOW < turns && (
                <button class="more" onClick={() => setFrom(from + WINDOW)}>
                  {plural(turns - from - WINDOW, "later turn")}
                </button>
              )}
              <p class="ending">
                <Verdict row={row} /> <span class="dim">ended by</span> <Untrusted text={record.reason} />
              </p>
            </div>
            <Aside data={data} record={record} hot={hot} onHot={setHot} onShow={showEvidence} />
          </div>
        ) : tab === "tokens" ? (
          <TokensTab base={base} />
        ) : tab === "reward" ? (
          <RewardTab
            reward={record.reward}
            expected={data.expected}
            where={data.where}
            onShow={showEvidence}
            base={base}
          />
        ) : tab === "timing" ? (
          <Timing data={data} record={record} />
        ) : tab === "raw" ? (
          <Raw base={base} record={record} />
        ) : (
          <Lock run={run} lock={data.lock} about={about} />
        )}
      </div>
    </main>
  );
}

function Raw({ base, record }: { base: string; record: Trajectory }) {
  return (
    <div class="stack">
      <p>
        <a class="button" href={`${base}/raw`} download>
          Download the record
        </a>{" "}
        <span class="dim">long texts are cut below, images are named by their digest</span>
      </p>
      <UntrustedBlock text={JSON.stringify(record, null, 2)} label="record" />
    </div>
  );
}
function Lock({ run, lock, about }: { run: string; lock: Whole["lock"]; about: RunPage }) {
  const [locks, setLocks] = useState<Record<string, Record<string, Plain>> | null>(null),
    hash = typeof lock === "string" ? lock : about.lock;
  useEffect(() => {
    ask<{ locks: Record<string, Record<string, Plain>> }>(`/api/runs/${run}/lock`).then(
      d => setLocks(d.locks),
      () => setLocks({}),
    );
  }, [run]);
  const found = lock && typeof lock === "object" ? lock : locks?.[hash];
  return (
    <div class="stack">
      <p>
        What made this episode:{" "}
        <code>
          <Untrusted text={hash || "no lock"} />
        </code>
      </p>
      {found ? <Facts facts={found} /> : locks ? <Empty>No lock was kept with that name.</Empty> : <Loading />}
    </div>
  );
}
