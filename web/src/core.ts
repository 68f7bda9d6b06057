/** Asking the API, the address bar, live events and the keyboard: what every page stands on. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { Live } from "./types";

/** What the server answered instead of data; `column` is the place in a query, counted from 1. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly column?: number,
  ) {
    super(message);
  }
}

export async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  let reply: Response;
  try {
    reply = await fetch(path, { credentials: "same-origin", ...init });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is `rlenv view` still running?", 0);
  }
  const body = await reply.text();
  let value: unknown = null;
  try {
    value = body ? JSON.parse(body) : null;
  } catch {
    value = { error: body.slice(0, 400) };
  }
  if (!reply.ok) {
    const told = (value ?? {}) as { error?: string; column?: number };
    throw new Refusal(told.error ?? `${reply.status} ${reply.statusText}`, reply.status, told.column);
  }
  return value as T;
}

const send =
  (method: string) =>
  <T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> =>
    ask<T>(path, {
      method,
      signal,
      headers: { "X-Rlenv": "1", "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
export const post = send("POST"),
  put = send("PUT"),
  remove = send("DELETE");

export interface Asked<T> {
  data: T | undefined;
  fault: Refusal | undefined;
  busy: boolean;
  path: string | null;
}

/** The answer to `path`, asked again when `path` or `tick` change; the old one stays until the new one is there. */
export function useData<T>(path: string | null, tick: unknown = 0): Asked<T> {
  const [state, setState] = useState<Asked<T>>({ data: undefined, fault: undefined, busy: true, path });
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    setState(old => ({ ...old, busy: true }));
    ask<T>(path, { signal: stop.signal }).then(
      data => setState({ data, fault: undefined, busy: false, path }),
      (error: Error) => {
        if (error.name !== "AbortError") setState(old => ({ ...old, fault: error as Refusal, busy: false, path }));
      },
    );
    return () => stop.abort();
  }, [path, tick]);
  return state;
}

/* The address bar. Keys of runs are used as they stand in it: the server has made them, nothing is decoded. */

export interface Place {
  path: string[];
  search: string;
  hash: string;
}
const here = (): Place => ({
  path: location.pathname.split("/").filter(Boolean),
  search: location.search,
  hash: location.hash.slice(1),
});
const listeners = new Set<() => void>();
const changed = () => listeners.forEach(tell => tell());
addEventListener("popstate", changed);
addEventListener("hashchange", changed);

export function go(url: string, options: { replace?: boolean } = {}): void {
  history[options.replace ? "replaceState" : "pushState"](null, "", url);
  changed();
}
export function usePlace(): Place {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const tell = () => setPlace(here());
    listeners.add(tell);
    return () => void listeners.delete(tell);
  }, []);
  return place;
}
export const param = (search: string, name: string): string => new URLSearchParams(search).get(name) ?? "";
/** The parameter as it is written in the address, for keys of runs. */
export const rawParam = (search: string, name: string): string =>
  new RegExp(`[?&]${name}=([^&#]*)`).exec(search)?.[1] ?? "";
export const query = (values: Record<string, string | number | null | undefined>): string => {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? "?" + kept.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&") : "";
};

document.addEventListener("click", event => {
  const link = (event.target as Element).closest?.("a[href^='/']") as HTMLAnchorElement | null;
  if (
    !link ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    link.target ||
    link.hasAttribute("download")
  )
    return;
  if (link.dataset.plain !== undefined) return;
  event.preventDefault();
  go(link.getAttribute("href")!);
});

/* Live runs. */

export function useLive(run: string): Live | null {
  const [live, setLive] = useState<Live | null>(null);
  useEffect(() => {
    setLive(null);
    const source = new EventSource(`/api/runs/${run}/events`);
    source.onmessage = event => {
      try {
        setLive(JSON.parse(event.data));
      } catch {
        /* a torn event: the next one says more */
      }
    };
    return () => source.close();
  }, [run]);
  return live;
}

/** The latest of a stream of lines of JSON, and whether it has ended. */
export async function lines<T>(path: string, each: (value: T) => void, signal: AbortSignal): Promise<void> {
  const reply = await fetch(path, { signal, credentials: "same-origin" });
  if (!reply.ok || !reply.body) throw new Refusal(`${reply.status} ${reply.statusText}`, reply.status);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part.trim()) each(JSON.parse(part));
    if (done) return;
  }
}

/* The keyboard. The page that was drawn last is asked first. */

type Keys = Record<string, () => void>;
const layers: { current: Keys }[] = [];
const typing = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
document.addEventListener("keydown", event => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) {
    const box = event.target as HTMLInputElement;
    if (event.key === "Escape" && !box.closest(".cm-editor")) box.blur();
    if (box.type !== "checkbox" && box.type !== "radio") return;
  }
  if (document.querySelector("dialog[open]")) return;
  for (let at = layers.length - 1; at >= 0; at--) {
    const act = layers[at]!.current[event.key];
    if (act) {
      event.preventDefault();
      act();
      return;
    }
  }
});
export function useKeys(keys: Keys): void {
  const mine = useRef(keys);
  mine.current = keys;
  useEffect(() => {
    layers.push(mine);
    return () => void layers.splice(layers.indexOf(mine), 1);
  }, []);
}

/* What the reader chose, kept in this browser; a browser that forbids it keeps nothing. */

export function useKept<T>(name: string, first: T): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(() => {
    try {
      return JSON.parse(localStorage.getItem(`rlenv.${name}`) ?? "null") ?? first;
    } catch {
      return first;
    }
  });
  const keep = useCallback(
    (next: T) => {
      setValue(next);
      try {
        localStorage.setItem(`rlenv.${name}`, JSON.stringify(next));
      } catch {
        /* kept for this page only */
      }
    },
    [name],
  );
  return [value, keep];
}

export function useWidth<E extends Element>(): [preact.RefObject<E>, number] {
  const box = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(seen => setWidth(Math.floor(seen[0]!.contentRect.width)));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** Says something to people who listen to the page, and shows it for a moment to those who look. */
export function say(text: string): void {
  const box = document.getElementById("said");
  if (!box) return;
  box.textContent = text;
  box.classList.add("shown");
  setTimeout(() => {
    if (box.textContent === text) box.classList.remove("shown");
  }, 2500);
}
