/** The one component that draws strings of a run. Whatever they spell, they stay text. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ask } from "./core";

/** Controls, direction marks, invisible characters and tags: nothing that a reader could see. Tab and line feed are text. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|(?<!\p{Extended_Pictographic}\ufe0f?)\u200d|[\u{e0000}-\u{e007f}]/u;
const NAMES: Record<number, string> = {
  0: "NUL",
  7: "BEL",
  8: "BS",
  11: "VT",
  12: "FF",
  13: "CR",
  27: "ESC",
  127: "DEL",
  0xad: "SHY",
  0x200b: "ZWSP",
  0x200c: "ZWNJ",
  0x200d: "ZWJ",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "LSEP",
  0x2029: "PSEP",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};
const MOST_BADGES = 500;
/** A little more than the server sends of a text, so that one that it has cut is not cut again. */
export const DRAWN = 20_100;

/** The text in pieces: strings as they are, and a badge for each stretch of one hidden character. */
export function pieces(text: string): ComponentChildren[] {
  if (!HIDDEN.test(text)) return [text];
  const out: ComponentChildren[] = [];
  let rest = text,
    found: RegExpExecArray | null,
    badges = 0;
  while ((found = HIDDEN.exec(rest))) {
    if (found.index) out.push(rest.slice(0, found.index));
    const hidden = found[0];
    let end = found.index + hidden.length,
      times = 1;
    while (rest.startsWith(hidden, end)) {
      end += hidden.length;
      times++;
    }
    rest = rest.slice(end);
    if (hidden === "\r" && times === 1 && rest.startsWith("\n")) continue;
    if (++badges > MOST_BADGES) {
      out.push("\ufffd", rest.replace(new RegExp(HIDDEN, "gu"), "\ufffd"));
      return out;
    }
    const code = hidden.codePointAt(0)!,
      hex = "U+" + code.toString(16).toUpperCase().padStart(4, "0");
    out.push(
      <span class="hidden-char" title={hex}>
        {NAMES[code] ?? hex}
        {times > 1 ? `×${times}` : ""}
      </span>,
    );
  }
  out.push(rest);
  return out;
}

export interface Mark {
  start: number;
  end: number;
  class: string;
}
function marked(text: string, marks: Mark[]): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  let at = 0;
  for (const mark of [...marks].sort((a, b) => a.start - b.start || b.class.length - a.class.length)) {
    const start = Math.max(at, mark.start),
      end = Math.min(text.length, mark.end);
    if (end <= start) continue;
    out.push(...pieces(text.slice(at, start)), <mark class={mark.class}>{pieces(text.slice(start, end))}</mark>);
    at = end;
  }
  out.push(...pieces(text.slice(at)));
  return out;
}

/** A short string of a run within a line. */
export function Untrusted({ text, most = 300 }: { text: unknown; most?: number }) {
  const whole = typeof text === "string" ? text : text === null || text === undefined ? "" : String(text);
  return <bdi>{pieces(whole.length > most ? whole.slice(0, most - 1) + "…" : whole)}</bdi>;
}

/** The name of an episode where there is little room: its end tells it from the others of its run. */
export const ShortId = ({ id }: { id: string }) => (
  <bdi title={id}>{pieces(id.length > 16 ? "…" + id.slice(-14) : id)}</bdi>
);

interface BlockOptions {
  text: string;
  full?: string;
  marks?: Mark[];
  find?: string;
  label?: string;
  plain?: boolean;
}
/** A text of a run as a block. `full` is where the whole text is asked for where the server has cut it. */
export function UntrustedBlock({ text, full, marks = [], find = "", label, plain = false }: BlockOptions) {
  const [whole, setWhole] = useState<string | null>(null),
    [most, setMost] = useState(DRAWN);
  useEffect(() => {
    setWhole(null);
    setMost(DRAWN);
  }, [text]);
  const all = whole ?? text,
    shown = all.length > most ? all.slice(0, most) : all;
  const drawn = useMemo(() => {
    const found = find ? places(shown, find).map(start => ({ start, end: start + find.length, class: "found" })) : [];
    return found.length || marks.length ? marked(shown, found.length ? found : marks) : pieces(shown);
  }, [shown, find, JSON.stringify(marks)]);
  // What scrolls has to be reachable by keyboard.
  const long = shown.length > 1000 || shown.split("\n", 18).length > 16;
  const fetchAll = () =>
    ask<{ text: string }>(full!).then(
      d => {
        setWhole(d.text);
        setMost(Math.max(DRAWN, d.text.length));
      },
      error => setWhole(`${text}\n(${error.message})`),
    );
  return (
    <div
      class={plain ? "text prose" : "text"}
      dir="auto"
      role={label || long ? "group" : undefined}
      aria-label={label ?? (long ? "text" : undefined)}
      tabIndex={long ? 0 : undefined}
    >
      {drawn}
      {all.length > shown.length && (
        <button
          class="more"
          onClick={() => setMost(all.length)}
        >{`${(all.length - shown.length).toLocaleString("en")} more characters`}</button>
      )}
      {full && whole === null && (
        <button class="more" onClick={fetchAll}>
          Show the whole text
        </button>
      )}
    </div>
  );
}

/** Where `part` stands in `text`, capitals or not; at most 2,000 places. */
export function places(text: string, part: string): number[] {
  const out: number[] = [],
    hay = text.toLowerCase(),
    needle = part.toLowerCase();
  if (hay.length !== text.length) return out;
  for (let at = hay.indexOf(needle); at >= 0 && out.length < 2000; at = hay.indexOf(needle, at + needle.length))
    out.push(at);
  return out;
}
