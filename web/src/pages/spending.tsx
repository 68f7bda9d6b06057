/** What was asked of models, by who asked and by model. */
import { count, num, Num, seconds, Table } from "../bits";
import { Untrusted } from "../text";
import type { Spending } from "../types";

/** An amount, with as many digits as a small one needs. */
export const money = (value: number | null): string =>
  value !== null && value > 0 && value < 0.1 ? value.toPrecision(3) : num(value);

export const SpendingTable = ({ spending }: { spending: Spending }) => (
  <>
    <Table
      label="Asked of models"
      head={[
        ["asked by"],
        ["model"],
        ["requests", "r"],
        ["failed", "r"],
        ["prompt", "r"],
        ["completion", "r"],
        ["time", "r"],
        ["cost", "r"],
        ["notes"],
      ]}
      rows={spending.roles.map(one => [
        <Untrusted text={one.role} most={120} />,
        <Untrusted text={one.model} most={60} />,
        ...[one.requests, one.failed, one.prompt_tokens, one.completion_tokens].map(n => <Num>{count(n)}</Num>),
        <Num>{seconds(one.seconds)}</Num>,
        <Num>{money(one.cost)}</Num>,
        <span class="dim">{one.notes.join(", ")}</span>,
      ])}
    />
    <p class="dim">
      <Untrusted text={spending.said} most={2000} />
    </p>
  </>
);
