/** A table of any length: it asks for the ranges that are looked at and draws only these. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { names } from "./bits";

export interface Column<R> {
  key: string;
  label: string;
  width: string;
  right?: boolean;
  sortable?: boolean;
  draw: (row: R) => ComponentChildren;
}
interface Options<R> {
  label: string;
  columns: Column<R>[];
  total: number;
  source: unknown;
  load: (offset: number, limit: number) => Promise<R[]>;
  id: (row: R) => string;
  sort: string;
  onSort: (sort: string) => void;
  selected: string;
  onSelect: (row: R, index: number) => void;
  onOpen: (row: R) => void;
  mark?: (row: R) => string | false;
}
const HIGH = 30,
  PAGE = 100,
  SPARE = 8;
/** Browsers cap how tall an element may be; beyond this the scroll bar stands for more than a pixel a pixel. */
const TALLEST = 8_000_000;

export function Grid<R>(options: Options<R>) {
  const { columns, total, source, load, id, sort, selected } = options;
  const box = useRef<HTMLDivElement>(null),
    pages = useRef(new Map<number, R[] | null>()),
    shown = useRef(new Map<number, R[]>());
  const [top, setTop] = useState(0),
    [view, setView] = useState(600),
    [active, setActive] = useState(0),
    [, draw] = useReducer((n: number) => n + 1, 0),
    wanted = useRef(false),
    unsaid = useRef(false);
  const known = useRef(source);
  if (known.current !== source) {
    known.current = source;
    shown.current = new Map([...shown.current, ...[...pages.current].filter((p): p is [number, R[]] => p[1] !== null)]);
    pages.current = new Map();
  }
  const at = (i: number): R | undefined =>
    (pages.current.get(Math.floor(i / PAGE)) ?? shown.current.get(Math.floor(i / PAGE)))?.[i % PAGE];
  const tall = Math.min(total * HIGH, TALLEST),
    room = Math.max(HIGH, view - HIGH),
    scale = total * HIGH > TALLEST ? (total * HIGH - room) / (TALLEST - room) : 1;
  const offset = top * scale,
    first = Math.max(0, Math.floor(offset / HIGH) - SPARE),
    last = Math.min(total, Math.ceil((offset + room) / HIGH) + SPARE);

  useEffect(() => {
    const watch = new ResizeObserver(() => setView(box.current!.clientHeight));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const mine = pages.current,
      from = Math.floor(first / PAGE),
      to = Math.floor(Math.max(first, last - 1) / PAGE);
    for (let page = from; total > 0 && page <= to; page++) {
      if (mine.has(page)) continue;
      mine.set(page, null);
      load(page * PAGE, PAGE).then(
        rows => {
          if (pages.current === mine) {
            mine.set(page, rows);
            shown.current.set(page, rows);
            draw(0);
          }
        },
        () => mine.delete(page),
      );
    }
  }, [source, first, last, total]);
  useEffect(() => {
    shown.current = new Map();
  }, [sort]);

  const bring = (i: number) => {
    const grid = box.current!,
      y = (i * HIGH) / scale,
      low = grid.scrollTop,
      high = low + (room - HIGH) / scale;
    if (y < low) grid.scrollTop = y;
    else if (y > high) grid.scrollTop = y - (room - HIGH) / scale;
  };
  const move = (to: number) => {
    const i = Math.max(0, Math.min(total - 1, to)),
      row = at(i);
    setActive(i);
    bring(i);
    wanted.current = true;
    unsaid.current = !row;
    if (row) options.onSelect(row, i);
  };
  useLayoutEffect(() => {
    // A row that was gone to before it had come is told of once it is there.
    const come = unsaid.current ? at(active) : undefined;
    if (come) {
      unsaid.current = false;
      options.onSelect(come, active);
    }
    if (!wanted.current) return;
    const row = box.current!.querySelector<HTMLElement>("[tabindex='0'][role=row]");
    if (row) {
      row.focus({ preventScroll: true });
      wanted.current = false;
    }
  });
  const key = (event: KeyboardEvent) => {
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      (event.target as Element).closest("input, [role=columnheader]")
    )
      return;
    const page = Math.max(1, Math.floor(room / HIGH) - 1);
    const to = (
      {
        ArrowDown: active + 1,
        j: active + 1,
        ArrowUp: active - 1,
        k: active - 1,
        PageDown: active + page,
        PageUp: active - page,
        Home: 0,
        End: total - 1,
      } as Record<string, number>
    )[event.key];
    if (to !== undefined) {
      event.preventDefault();
      move(to);
      return;
    }
    const row = at(active);
    if (event.key === "Enter" && row && !(event.target as Element).closest("a, button")) {
      event.preventDefault();
      options.onOpen(row);
    }
  };
  const line = (i: number) => {
    const row = at(i),
      here = i === Math.min(active, total - 1),
      y = HIGH + (scale === 1 ? i * HIGH : top + i * HIGH - offset);
    return (
      <div
        key={i}
        role="row"
        class={names("row", row && id(row) === selected && "selected", row && options.mark?.(row))}
        aria-rowindex={i + 2}
        aria-selected={!!row && id(row) === selected}
        tabIndex={here ? 0 : -1}
        style={{ top: `${y}px` }}
        onClick={event => {
          if (!row || (event.target as Element).closest("a, input")) return;
          setActive(i);
          wanted.current = true;
          options.onSelect(row, i);
          draw(0);
        }}
        onDblClick={() => row && options.onOpen(row)}
      >
        {columns.map(column => (
          <span role="gridcell" key={column.key} class={column.right ? "num" : ""}>
            {row ? column.draw(row) : <i class="ghost" />}
          </span>
        ))}
      </div>
    );
  };
  const least = columns.reduce((sum, column) => sum + parseFloat(/[\d.]+/.exec(column.width)![0]), 0);
  const lines = [];
  for (let i = first; i < last; i++) lines.push(i);
  const current = Math.min(active, total - 1);
  if (total > 0 && (current < first || current >= last)) lines.push(current);
  const way = (column: Column<R>) =>
    sort === column.key ? "ascending" : sort === "-" + column.key ? "descending" : "none";
  return (
    <div
      class="grid"
      role="grid"
      aria-label={options.label}
      aria-rowcount={total + 1}
      aria-colcount={columns.length}
      ref={box}
      tabIndex={-1}
      onScroll={event => setTop((event.target as HTMLElement).scrollTop)}
      onKeyDown={key}
      style={
        {
          "--columns": columns.map(column => column.width).join(" "),
          "--least": `calc(${least}rem + ${10 * columns.length + 18}px)`,
        } as never
      }
    >
      <div class="row head" role="row" aria-rowindex={1}>
        {columns.map(column => (
          <span role="columnheader" key={column.key} class={column.right ? "num" : ""} aria-sort={way(column)}>
            {column.sortable === false ? (
              column.label
            ) : (
              <button onClick={() => options.onSort(sort === "-" + column.key ? column.key : "-" + column.key)}>
                {column.label}
                {way(column) !== "none" && <i aria-hidden="true">{way(column) === "ascending" ? "↑" : "↓"}</i>}
              </button>
            )}
          </span>
        ))}
      </div>
      <div class="spacer" role="presentation" style={{ height: `${tall}px` }} />
      {lines.map(line)}
    </div>
  );
}
