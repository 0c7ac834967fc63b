// Chunk groups: the parts of a snapshot that one task reads.

import { offer } from "./acts.js";
import { h, named, table } from "./dom.js";
import { ago, many, number } from "./format.js";
import { tableAddress, taskLink } from "./links.js";

const WORDS = { pending: "waiting", running: "being read", rereading: "being read again", done: "in the copy", taken_over: "nothing left to read", failed: "failed" };
const DOTS = { done: "working", taken_over: "working", running: "snapshot", rereading: "snapshot", failed: "failed" };

const tablesOf = (p, g) => [g.tables.map((name, n) => [n > 0 && ", ", h("a", { href: tableAddress(p, name) }, named(name))]), g.tables_more > 0 && ` and ${many(g.tables_more, "more", "more")}`];

export const groupState = (state) => WORDS[state] ?? state;

/** Groups as a table, with a button for those that can be retried. */
export function groupTable(p, groups) {
  const columns = [
    ["group", (g) => String(g.no)],
    ["state", (g) => [h("span", { class: `dot ${DOTS[g.state] ?? "idle"}` }), groupState(g.state), h("small", { class: "line" }, g.finished_at ? ago(g.finished_at) : g.started_at ? ["began ", ago(g.started_at)] : null)]],
    ["tables", (g) => tablesOf(p, g), { text: true }],
    ["chunks", (g) => (g.chunks === undefined ? "–" : `${number(g.done)} of ${number(g.chunks)}`), { r: true }],
    ["rows", (g) => number(g.rows), { r: true }],
    ["attempt", (g) => (g.attempt ? String(g.attempt) : "–"), { r: true }],
    ["read by", (g) => taskLink(g.reader) ?? "–", { text: true }],
  ];
  if (groups.some((g) => g.retry)) columns.push(["actions", (g) => g.retry && offer("retry", `Retry group ${g.no}`, { group: g.no }, { short: "Retry" })]);
  return table("Chunk groups", columns, groups, (g) => `group ${g.no}`);
}
