/** Forms for the tools of a spec: the fields of each kind, written into the text at the place of the entry. */
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { compact, Empty, Fault, Loading, names } from "../bits";
import { post, Refusal, say } from "../core";
import { Untrusted } from "../text";
import type { FormField, Forms, Plain } from "../types";

const GROUP = "tools";
const written = (value: Plain | undefined, field: FormField): string =>
  value === undefined || value === null
    ? ""
    : typeof value === "string" && field.input !== "json"
      ? value
      : field.input === "choice"
        ? String(value)
        : JSON.stringify(value);

/** The value that a field's text stands for; null, which removes the key, where there is none. */
function read(text: string, field: FormField): Plain {
  if (!text.trim()) return null;
  if (field.input === "text") return text;
  if (field.input === "choice") return field.choices.find(one => String(one) === text) ?? text;
  try {
    return JSON.parse(text) as Plain;
  } catch {
    if (field.input === "any") return text;
    throw new Refusal(`${field.name}: expected ${field.type}, written as JSON`, 0);
  }
}

function Field({ field, value, onValue }: { field: FormField; value: string; onValue: (text: string) => void }) {
  const id = useId(),
    shared = { id, value, required: field.required, "aria-describedby": `${id}-doc` },
    hint = field.default === null || field.default === undefined ? "" : compact(field.default);
  return (
    <div class="field">
      <label for={id}>
        {field.name}
        {field.required && <span class="dim"> required</span>}
      </label>
      {field.input === "choice" ? (
        <select {...shared} onChange={event => onValue(event.currentTarget.value)}>
          <option value="">{hint ? `${hint} (default)` : "–"}</option>
          {[...new Set([...field.choices.map(String), ...(value ? [value] : [])])].map(one => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      ) : field.input === "integer" || field.input === "number" ? (
        <input
          {...shared}
          type="number"
          step={field.input === "integer" ? 1 : "any"}
          placeholder={hint}
          onInput={event => onValue(event.currentTarget.value)}
        />
      ) : (
        <textarea
          {...shared}
          rows={Math.min(8, value.split("\n").length)}
          placeholder={hint}
          class={names(field.input !== "text" && "mono")}
          onInput={event => onValue(event.currentTarget.value)}
        />
      )}
      <p class="dim" id={`${id}-doc`}>
        {field.type && <b>{field.type}. </b>}
        {field.doc}
      </p>
    </div>
  );
}

export function ToolForms({
  path,
  text,
  onText,
}: {
  path: string;
  text: string;
  onText: (next: string, was: string) => boolean;
}) {
  const [forms, setForms] = useState<Forms | null>(null),
    [fault, setFault] = useState<Refusal>(),
    [chosen, setChosen] = useState(""),
    [given, setGiven] = useState<Record<string, string>>({}),
    [name, setName] = useState(""),
    [kind, setKind] = useState(""),
    heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    const stop = new AbortController(),
      soon = setTimeout(() => {
        post<Forms>("/api/language/form", { path, text, group: GROUP }, stop.signal).then(setForms, error => {
          if (error.name !== "AbortError") setFault(error);
        });
      }, 150);
    return () => {
      clearTimeout(soon);
      stop.abort();
    };
  }, [path, text]);
  if (!forms) return fault ? <Fault fault={fault} /> : <Loading />;
  const entry = forms.entries[chosen],
    isNew = !entry,
    of = String(entry?.kind ?? kind),
    fields = forms.kinds[of]?.fields ?? [],
    texts = (field: FormField) => given[field.name] ?? written(entry?.[field.name], field);
  const choose = (next: string) => {
    setChosen(next);
    setName("");
    setGiven({});
    setFault(undefined);
    heading.current?.focus();
  };
  const write = async () => {
    try {
      const values: Record<string, Plain> = isNew ? { kind: of } : {};
      for (const field of fields) {
        const now = given[field.name];
        if (now === undefined || now === written(entry?.[field.name], field)) continue;
        const value = read(now, field);
        if (value !== null || !isNew) values[field.name] = value;
      }
      const to = isNew ? name.trim() : chosen,
        made = await post<{ text: string }>("/api/language/edit", { path, text, group: GROUP, name: to, values });
      if (!onText(made.text, text)) throw new Refusal("The text has changed meanwhile. Write it once more.", 0);
      setFault(undefined);
      setGiven({});
      setName("");
      setChosen(to);
      say(isNew ? `${to} is added.` : `${to} is changed.`);
    } catch (error) {
      setFault(error as Refusal);
    }
  };
  const move = async (how: "rename" | "delete") => {
    try {
      const body = { path, text, group: GROUP, name: chosen, ...(how === "rename" ? { to: name.trim() } : {}) },
        made = await post<{ text: string; left: string[] }>(`/api/language/${how}`, body);
      if (!onText(made.text, text)) throw new Refusal("The text has changed meanwhile. Do it once more.", 0);
      choose(how === "rename" ? name.trim() : "");
      setName("");
      say(`${chosen} is ${how}d.`);
      if (made.left.length) setFault(new Refusal(`${chosen} is still named in ${made.left.join(", ")}.`, 0));
    } catch (error) {
      setFault(error as Refusal);
    }
  };
  const drawn = (some: FormField[]) =>
    some.map(field => (
      <Field
        key={`${chosen}.${of}.${field.name}`}
        field={field}
        value={texts(field)}
        onValue={value => setGiven({ ...given, [field.name]: value })}
      />
    ));
  const first = fields.filter(field => !field.shared || field.name === "description"),
    rest = fields.filter(field => field.shared && field.name !== "description");
  return (
    <form
      class="stack forms"
      onSubmit={event => {
        event.preventDefault();
        void write();
      }}
    >
      <div class="toolbar" role="group" aria-label="Tools">
        {Object.keys(forms.entries).map(one => (
          <button type="button" key={one} aria-pressed={one === chosen} onClick={() => choose(one)}>
            <Untrusted text={one} most={40} />
          </button>
        ))}
        <button type="button" aria-pressed={isNew} onClick={() => choose("")}>
          Add a tool
        </button>
      </div>
      <h2 ref={heading} tabIndex={-1}>
        {isNew ? "A new tool" : <Untrusted text={chosen} most={60} />}
      </h2>
      {isNew && (
        <div class="field">
          <label for="form-name">
            name <span class="dim">required</span>
          </label>
          <input id="form-name" required value={name} onInput={event => setName(event.currentTarget.value)} />
        </div>
      )}
      {isNew ? (
        <div class="field">
          <label for="form-kind">
            kind <span class="dim">required</span>
          </label>
          <select
            id="form-kind"
            required
            value={kind}
            onChange={event => {
              setKind(event.currentTarget.value);
              setGiven({});
            }}
          >
            <option value="">–</option>
            {Object.keys(forms.kinds).map(one => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </div>
      ) : null}
      {forms.kinds[of] ? (
        <p class="dim">
          {of}: {forms.kinds[of]!.doc}
        </p>
      ) : (
        !isNew && <Empty>A kind that comes from elsewhere has no form: change it in the text.</Empty>
      )}
      {drawn(first)}
      {rest.length > 0 && (
        <details>
          <summary>What every tool takes</summary>
          {drawn(rest)}
        </details>
      )}
      <Fault fault={fault} />
      <div>
        <button class="primary" disabled={!fields.length}>
          {isNew ? "Add" : "Change"}
        </button>{" "}
        {!isNew && (
          <>
            <input
              aria-label="New name"
              placeholder={chosen}
              value={name}
              onInput={event => setName(event.currentTarget.value)}
            />{" "}
            <button type="button" disabled={!name.trim()} onClick={() => void move("rename")}>
              Rename
            </button>{" "}
            <button type="button" onClick={() => void move("delete")}>
              Delete
            </button>{" "}
          </>
        )}
        <span class="dim">writes into the text; nothing is saved yet</span>
      </div>
    </form>
  );
}
