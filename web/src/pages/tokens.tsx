/** The ids that are trained on: what is masked, what gets which advantage, how likely each token was. */
import { useMemo, useRef, useState } from "preact/hooks";
import { count, Empty, Fault, Loading, names, num, percent, signed } from "../bits";
import { useData } from "../core";
import { Grid, type Column } from "../grid";
import { pieces, Untrusted } from "../text";
import type { TokenRow, Tokens } from "../types";

const BY = ["mask", "advantage", "log-probability"] as const;
type By = (typeof BY)[number];
const EDGES = [-0.1, -0.5, -1, -2];
const bin = (p: number | null | undefined): number =>
  p === null || p === undefined ? 0 : EDGES.filter(edge => p < edge).length;
const BINS = [
  "above \u22120.1",
  "\u22120.1 to \u22120.5",
  "\u22120.5 to \u22121",
  "\u22121 to \u22122",
  "below \u22122",
];
const MOST = 8000;

interface One {
  n: number;
  kind: string;
  id: number;
  piece: string;
  trained: boolean;
  logprob: number | null;
}
const visible = (text: string): string => text.replace(/ /g, "·").replace(/\t/g, "→").replace(/\n/g, "⏎\n");

function Line({
  row,
  by,
  white,
  spaced,
  advantage,
  all,
  onAll,
}: {
  row: TokenRow;
  by: By;
  white: boolean;
  spaced: boolean;
  advantage: number | null;
  all: boolean;
  onAll: () => void;
}) {
  const [at, setAt] = useState<number | null>(null),
    box = useRef<HTMLDivElement>(null),
    sampled = useMemo(
      () =>
        row.mask
          .split("")
          .map((m, i) => (m === "1" ? i : -1))
          .filter(i => i >= 0),
      [row],
    );
  const kindOf = (i: number) => row.runs.find(run => i >= run.start && i < run.end)?.kind ?? "sampled";
  const end = all ? row.pieces.length : Math.min(row.pieces.length, MOST),
    drawn = [];
  const gap = spaced ? [" "] : [];
  const show = (text: string) => pieces(white ? visible(text) : text);
  const style = (i: number) =>
    by === "mask"
      ? "trained"
      : by === "advantage"
        ? names("trained", advantage === null || advantage === 0 ? "even" : advantage > 0 ? "plus" : "minus")
        : `trained lp${bin(row.logprobs?.[i])}`;
  for (let i = 0; i < end;) {
    if (row.mask[i] === "1") {
      drawn.push(
        <span key={i} data-i={i} class={names("tok", style(i), i === at && "at")}>
          {show(row.pieces[i]!)}
        </span>,
        ...gap,
      );
      i++;
      continue;
    }
    const from = i,
      kind = kindOf(i);
    while (i < end && row.mask[i] !== "1" && kindOf(i) === kind) i++;
    drawn.push(
      <span
        key={from}
        data-i={from}
        class={names("masked", kind)}
        title={`${kind}, masked: tokens ${from} to ${i - 1}`}
      >
        {show(row.pieces.slice(from, i).join(spaced ? " " : ""))}
      </span>,
      ...gap,
    );
  }
  const seen =
    at === null
      ? null
      : { id: row.ids[at], piece: row.pieces[at] ?? "", p: row.logprobs?.[at], trained: row.mask[at] === "1" };
  const over = (event: Event) => {
    const i = (event.target as HTMLElement).closest<HTMLElement>("[data-i]")?.dataset.i;
    if (i !== undefined) setAt(Number(i));
  };
  const key = (event: KeyboardEvent) => {
    const by = ({ ArrowRight: 1, ArrowLeft: -1 } as Record<string, number>)[event.key];
    if (!by || !sampled.length) return;
    event.preventDefault();
    const next = at === null ? 0 : sampled.findIndex(i => i >= at) + by,
      to = sampled[Math.max(0, Math.min(sampled.length - 1, next))]!;
    setAt(to);
    box.current!.querySelector(`[data-i='${to}']`)?.scrollIntoView({ block: "nearest" });
  };
  return (
    <>
      <div class="token-at" role="status">
        {seen ? (
          <>
            <b class="num">#{at}</b> id <b class="num">{seen.id}</b>{" "}
            <code>
              <Untrusted text={visible(seen.piece)} most={60} />
            </code>{" "}
            {seen.trained ? (
              <>
                trained
                {advantage !== null && (
                  <>
                    , advantage <b class="num">{signed(advantage, 3)}</b>
                  </>
                )}
                {seen.p !== null && seen.p !== undefined && (
                  <>
                    , log-probability <b class="num">{num(seen.p, 3)}</b> ({percent(Math.exp(seen.p), 1)})
                  </>
                )}
              </>
            ) : (
              <>{kindOf(at!)}, masked</>
            )}
          </>
        ) : (
          <span class="dim">point at a token, or move through the trained ones with ← →</span>
        )}
      </div>
      <div class="tokens" ref={box} tabIndex={0} role="group" aria-label="tokens" onMouseOver={over} onKeyDown={key}>
        {drawn}
        {end < row.pieces.length && (
          <button class="more" onClick={onAll}>
            {count(row.pieces.length - end)} more tokens
          </button>
        )}
      </div>
    </>
  );
}

const TABLE: Column<One>[] = [
  { key: "n", label: "#", width: "5rem", right: true, sortable: false, draw: t => t.n },
  { key: "kind", label: "kind", width: "7rem", sortable: false, draw: t => t.kind },
  {
    key: "trained",
    label: "trained",
    width: "5rem",
    sortable: false,
    draw: t => (t.trained ? "yes" : <span class="dim">no</span>),
  },
  { key: "id", label: "id", width: "6rem", right: true, sortable: false, draw: t => t.id },
  { key: "logprob", label: "log-prob.", width: "6rem", right: true, sortable: false, draw: t => num(t.logprob, 3) },
  {
    key: "piece",
    label: "text",
    width: "minmax(10rem,1fr)",
    sortable: false,
    draw: t => (
      <code>
        <Untrusted text={visible(t.piece)} />
      </code>
    ),
  },
];
function AsTable({ row }: { row: TokenRow }) {
  const all = useMemo(() => {
    const kinds: string[] = [];
    for (const run of row.runs) for (let i = run.start; i < run.end; i++) kinds[i] = run.kind;
    return row.pieces.map((piece, n): One => ({
      n,
      kind: kinds[n] ?? "",
      id: row.ids[n]!,
      piece,
      trained: row.mask[n] === "1",
      logprob: row.logprobs?.[n] ?? null,
    }));
  }, [row]);
  const [selected, setSelected] = useState("");
  return (
    <div class="token-table">
      <Grid
        label="Tokens"
        columns={TABLE}
        total={all.length}
        source={all}
        load={(offset, limit) => Promise.resolve(all.slice(offset, offset + limit))}
        id={t => String(t.n)}
        sort=""
        onSort={() => undefined}
        selected={selected}
        onSelect={t => setSelected(String(t.n))}
        onOpen={() => undefined}
      />
    </div>
  );
}

export function TokensTab({ base }: { base: string }) {
  const asked = useData<Tokens>(`${base}/tokens`),
    [by, setBy] = useState<By>("advantage"),
    [white, setWhite] = useState(false),
    [table, setTable] = useState(false),
    [all, setAll] = useState(false),
    [which, setWhich] = useState(0);
  if (!asked.data) return asked.fault ? <Fault fault={asked.fault} /> : <Loading />;
  const { rows, advantage, tokenizer } = asked.data,
    row = rows[which];
  if (!row) return <Empty>No token ids were recorded for this episode.</Empty>;
  const trained = row.mask.split("1").length - 1,
    legend =
      by === "mask"
        ? [["trained", "trained on"]]
        : by === "advantage"
          ? [
              [
                advantage === null
                  ? "trained even"
                  : advantage > 0
                    ? "trained plus"
                    : advantage < 0
                      ? "trained minus"
                      : "trained even",
                advantage === null ? "trained, advantage not known" : `trained, advantage ${signed(advantage, 3)}`,
              ],
            ]
          : BINS.map((word, i) => [`trained lp${i}`, word]);
  return (
    <div class="stack">
      <div class="toolbar">
        <label>
          show{" "}
          <select value={by} onChange={event => setBy(event.currentTarget.value as By)}>
            {BY.map(word => (
              <option key={word} disabled={word === "log-probability" && !row.logprobs}>
                {word}
              </option>
            ))}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={white} onChange={event => setWhite(event.currentTarget.checked)} />
          white space
        </label>
        <label class="check">
          <input type="checkbox" checked={table} onChange={event => setTable(event.currentTarget.checked)} />
          table
        </label>
        {rows.length > 1 && (
          <label>
            row{" "}
            <select value={which} onChange={event => setWhich(Number(event.currentTarget.value))}>
              {rows.map((r, i) => (
                <option key={i} value={i}>{`${i + 1} of ${rows.length}, ${r.ids.length} tokens`}</option>
              ))}
            </select>
          </label>
        )}
        <span class="end dim num">
          {count(trained)} of {count(row.ids.length)} tokens are trained on (
          {percent(trained / Math.max(1, row.ids.length), 1)})
        </span>
      </div>
      <div class="legend" aria-label="legend" role="group">
        {legend.map(([kind, word]) => (
          <span key={word}>
            <span class={"tok " + kind}>abc</span> {word}
          </span>
        ))}
        <span>
          <span class="masked observation">abc</span> observation, masked
        </span>
        <span>
          <span class="masked prompt">abc</span> prompt, masked
        </span>
        {!tokenizer && <span class="tag">no tokenizer: ids are shown</span>}
      </div>
      {table ? (
        <AsTable row={row} />
      ) : (
        <Line
          row={row}
          by={by}
          white={white}
          spaced={!tokenizer}
          advantage={advantage}
          all={all}
          onAll={() => setAll(true)}
        />
      )}
    </div>
  );
}
