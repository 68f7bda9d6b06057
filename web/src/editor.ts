/** The editor of the workbench, loaded only there. Faults, completion and help come from the server. */
import {
  acceptCompletion,
  autocompletion,
  completionKeymap,
  startCompletion,
  type CompletionContext,
  type CompletionResult,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, indentMore } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import {
  bracketMatching,
  foldGutter,
  foldKeymap,
  HighlightStyle,
  indentOnInput,
  indentUnit,
  syntaxHighlighting,
} from "@codemirror/language";
import { forceLinting, lintGutter, lintKeymap, setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { Compartment, EditorState, type Text } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  hoverTooltip,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { SpecFault } from "./types";

export interface Item {
  label: string;
  detail?: string;
  doc?: string;
  insert?: string;
}
export interface Wiring {
  text: string;
  nonce: string;
  onChange: (text: string) => void;
  onSave: () => void;
  complete: (
    text: string,
    line: number,
    column: number,
  ) => Promise<{ from: { line: number; column: number }; items: Item[] }>;
  hover: (text: string, line: number, column: number) => Promise<{ markdown?: string }>;
}
export interface Editor {
  text: () => string;
  replace: (text: string) => void;
  faults: (faults: SpecFault[]) => void;
  go: (line: number, column: number) => void;
  focus: () => void;
  destroy: () => void;
}

/** Lines and columns are counted from 1; a place outside the text is the nearest one in it. */
const offset = (doc: Text, line: number, column: number): number => {
  const at = doc.line(Math.max(1, Math.min(doc.lines, line)));
  return Math.min(at.to, at.from + Math.max(0, column - 1));
};
const placeOf = (doc: Text, pos: number): [number, number] => {
  const line = doc.lineAt(pos);
  return [line.number, pos - line.from + 1];
};

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--string)" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], color: "var(--number)" },
  { tag: tags.comment, color: "var(--dim)", fontStyle: "italic" },
  { tag: [tags.labelName, tags.typeName, tags.meta], color: "var(--warn)" },
]);
const theme = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", backgroundColor: "var(--bg)", color: "var(--fg)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-gutters": { backgroundColor: "var(--bg)", color: "var(--dim)", border: "none" },
  ".cm-content": { caretColor: "var(--fg)" },
  ".cm-cursor": { borderLeftColor: "var(--fg)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--panel)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--selected) !important" },
  // Instead of the library's own pictures, which are data addresses that the policy forbids.
  ".cm-lintRange.cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--bad) 1px",
    textUnderlineOffset: "3px",
  },
  ".cm-lint-marker.cm-lint-marker-error": {
    content: "normal",
    width: "10px",
    height: "10px",
    margin: "5px 2px 0",
    backgroundColor: "var(--bad)",
    clipPath: "polygon(50% 5%, 100% 95%, 0 95%)",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    color: "var(--fg)",
    border: "1px solid var(--line)",
    borderRadius: "6px",
    boxShadow: "var(--shadow)",
    maxWidth: "32rem",
  },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--selected)", color: "var(--fg)" },
  ".cm-completionDetail": { color: "var(--dim)", fontStyle: "normal" },
  ".cm-diagnostic": { whiteSpace: "pre-wrap", padding: "4px 8px" },
  ".cm-help": { padding: "6px 10px", whiteSpace: "pre-wrap", fontSize: "12.5px" },
});

/** Help as text: what stands between backticks is code, the rest is as it is written. */
function help(markdown: string): HTMLElement {
  const box = document.createElement("div");
  box.className = "cm-help";
  markdown.split("`").forEach((part, i) => {
    const piece = document.createElement(i % 2 ? "code" : "span");
    piece.textContent = part.replace(/\*\*/g, "");
    box.append(piece);
  });
  return box;
}

export function mount(parent: HTMLElement, wiring: Wiring): Editor {
  const complete = async (context: CompletionContext): Promise<CompletionResult | null> => {
    const before = context.matchBefore(/[\w.-]+/);
    if (!before && !context.explicit && !context.matchBefore(/(?:: |- |\{\{ ?|[[{,] ?|^\s*)$/)) return null;
    const doc = context.state.doc,
      [line, column] = placeOf(doc, context.pos),
      found = await wiring.complete(doc.toString(), line, column).catch(() => null);
    if (!found?.items.length) return null;
    return {
      from: Math.min(context.pos, offset(doc, found.from.line, found.from.column)),
      options: found.items.map(item => ({
        label: item.label,
        detail: item.detail,
        apply: item.insert ?? item.label,
        info: item.doc ? () => help(item.doc!) : undefined,
      })),
      validFor: /^[\w.-]*$/,
    };
  };
  const hover = hoverTooltip(
    async (view, pos) => {
      const [line, column] = placeOf(view.state.doc, pos),
        found = await wiring.hover(view.state.doc.toString(), line, column).catch(() => null);
      return found?.markdown ? { pos, above: true, create: () => ({ dom: help(found.markdown!) }) } : null;
    },
    { hoverTime: 350 },
  );
  const dark = new Compartment(),
    scheme = matchMedia("(prefers-color-scheme: dark)"),
    isDark = () => EditorView.darkTheme.of(scheme.matches);
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: wiring.text,
      extensions: [
        EditorView.cspNonce.of(wiring.nonce),
        dark.of(isDark()),
        theme,
        lineNumbers(),
        foldGutter(),
        highlightActiveLineGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        indentUnit.of("  "),
        bracketMatching(),
        highlightActiveLine(),
        yaml(),
        syntaxHighlighting(colours),
        lintGutter(),
        autocompletion({ override: [complete] }),
        hover,
        keymap.of([
          {
            key: "Mod-s",
            preventDefault: true,
            run: () => {
              wiring.onSave();
              return true;
            },
          },
          { key: "Tab", run: acceptCompletion },
          { key: "Mod-]", run: indentMore },
          { key: "Mod-[", run: indentLess },
          { key: "Ctrl-Space", run: startCompletion },
          ...completionKeymap,
          ...lintKeymap,
          ...foldKeymap,
          ...historyKeymap,
          ...defaultKeymap,
        ]),
        EditorView.contentAttributes.of({
          "aria-label": "the spec; Escape then Tab leaves it",
          spellcheck: "false",
          tabindex: "0",
        }),
        EditorView.updateListener.of(update => {
          if (update.docChanged) wiring.onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  const follow = () => view.dispatch({ effects: dark.reconfigure(isDark()) });
  scheme.addEventListener("change", follow);
  return {
    text: () => view.state.doc.toString(),
    replace: text => {
      const old = view.state.doc.toString(),
        most = Math.min(old.length, text.length);
      let from = 0,
        same = 0; // only what differs is replaced, so that the cursor stays and one undo takes it back
      while (from < most && old[from] === text[from]) from++;
      while (same < most - from && old[old.length - 1 - same] === text[text.length - 1 - same]) same++;
      const to = old.length - same;
      view.dispatch({
        changes: { from, to, insert: text.slice(from, text.length - same) },
        effects: EditorView.scrollIntoView(from, { y: "nearest", yMargin: 60 }),
        userEvent: "input",
      });
    },
    faults: faults => {
      const doc = view.state.doc;
      const found = faults.map((fault): Diagnostic => {
        const from = offset(doc, fault.line, fault.column),
          line = doc.lineAt(from),
          to = fault.end_line ? offset(doc, fault.end_line, fault.end_column ?? 1) : line.to;
        return {
          from: Math.min(from, Math.max(line.from, line.to - 1)),
          to: Math.max(from, to),
          severity: fault.level === "warning" ? "warning" : "error",
          message: fault.message + (fault.hint ? `\n${fault.hint}` : ""),
        };
      });
      view.dispatch(
        setDiagnostics(
          view.state,
          found.sort((a, b) => a.from - b.from),
        ),
      );
      forceLinting(view);
    },
    go: (line, column) => {
      const at = offset(view.state.doc, line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    focus: () => view.focus(),
    destroy: () => {
      scheme.removeEventListener("change", follow);
      view.destroy();
    },
  };
}
