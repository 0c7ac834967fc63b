// The part of a pipeline's view that lists its tables. The server searches, sorts and cuts the list.

import { h, named, prose, table } from "./dom.js";
import { ago, bytes, many, number, rate } from "./format.js";
import { dagLink, tableAddress } from "./links.js";
import { ask } from "./server.js";

const PAGE = 30;
const SORTS = { trouble: "problems first", name: "by name", rows: "most rows first", changes: "most changes first", bytes: "largest first", verified: "last compared first" };
const isRising = (sort) => ["name", "trouble"].includes(sort);
const OPERATIONS = ["inserts", "updates", "deletes"];

const share = (t) => (t.state === "snapshot" && t.chunks ? `, ${number(t.done)} of ${many(t.chunks, "chunk")}` : "");

/** State of a table, since when, and why. */
export const tableState = (t) => [h("span", { class: `dot ${t.level ?? t.state}` }), h("span", { "data-state": t.state }, t.state.replaceAll("_", " ") + share(t)),
  t.since && h("small", null, " since ", ago(t.since), t.by && `, by ${t.by}`), t.reason && h("div", { class: t.level === "failed" ? "error" : "dim" }, prose(t.reason)), t.remedy && h("div", { class: "remedy" }, prose(t.remedy))];

const isRecorded = (t) => t.inserts !== undefined && t.inserts !== null;
const changed = (t) => t.inserts + t.updates + t.deletes;

/** Changes that the stream has applied, in total and per second, by operation. */
export const changesOf = (t) => (isRecorded(t) ? [number(changed(t)),
  OPERATIONS.map((name) => t[name] > 0 && h("small", { class: "line" }, `${number(t[name])} ${name}${t.rates ? `, ${rate(t.rates[name])}` : ""}`))] : "–");

const changesShort = (t) => (isRecorded(t) ? [number(changed(t)), t.rates && h("small", { class: "line" }, rate(OPERATIONS.reduce((sum, name) => sum + t.rates[name], 0)))] : "–");

/** Result of the last comparison, and why a later one was not possible. */
export const verifiedOf = (t) => [
  t.verified_at ? [h("span", { class: t.equal === false ? "failed" : null }, t.equal === false ? "different " : "equal "), h("small", null, ago(t.verified_at))] : "never",
  t.not_comparable && h("small", { class: "line" }, "not comparable ", ago(t.not_comparable.at), ": ", prose(t.not_comparable.reason))];

const nameOf = (t) => `${t.database}.${t.table}`;
export const rowsOf = (t) => (t.rows ?? null) !== null ? number(t.rows) : t.rows_read ? number(t.rows_read) : t.rows_estimate !== null && t.rows_estimate !== undefined ? `about ${number(t.rows_estimate)}` : "–";

/** How the list of tables comes about, and what to change to add or remove one. */
const patternsView = (p) => h("details", { class: "card", "data-key": "patterns" }, h("summary", null, "Add or remove tables"),
  h("p", null, "The pipeline's patterns decide which tables are copied: ", h("code", null, "source.tables"), " and ", h("code", null, "source.exclude"), ", in ",
    p.dags.length ? p.dags.map((dag, n) => [n > 0 && " or ", dagLink(dag)]) : "the file of the pipeline", ". The next run of the stream adds each table that now matches, and removes each one that no longer does."),
  h("p", null, "To let a running stream do so now: ", prose(p.reload), "."),
  h("p", null, "To stop copying a table at once, suspend it on its own page."));

export class Tables {
  constructor(context) {
    Object.assign(this, { context, q: "", state: "", trouble: false, sort: "trouble", desc: false, offset: 0, page: null });
  }

  /** rest: what stands behind the part in the address: a state, or `problems`. */
  open([state]) {
    if (state === undefined) return;
    const wanted = decodeURIComponent(state);
    Object.assign(this, { trouble: wanted === "problems", state: wanted === "problems" ? "" : wanted, offset: 0 });
  }

  async load(signal) {
    const query = new URLSearchParams({ offset: this.offset, limit: PAGE, sort: this.sort, ...(this.desc && { desc: 1 }), ...(this.q && { q: this.q }), ...(this.state && { state: this.state }), ...(this.trouble && { trouble: 1 }) });
    this.page = await ask(`${this.context.base}/tables?${query}`, signal);
  }

  get columns() {
    const { p } = this.context;
    return [
      ["table", (t) => [h("a", { href: tableAddress(p, nameOf(t)) }, h("b", null, named(nameOf(t)))), t.definitions > 1 && h("small", { class: "line" }, many(t.definitions, "definition"))], { text: true, key: "name" }],
      ["state", tableState, { text: true, key: "trouble" }],
      ["rows", rowsOf, { r: true, key: "rows" }],
      ["changes", changesShort, { r: true, key: "changes" }],
      ["size", (t) => (t.bytes || t.files ? [bytes(t.bytes), t.files > 0 && h("small", { class: "line" }, many(t.files, "file"))] : "–"), { r: true, key: "bytes" }],
      ["compared", verifiedOf, { key: "verified" }],
      ["as of", (t) => ago(t.updated_at), { r: true }],
    ];
  }

  draw(p) {
    const { page } = this;
    if (!page) return h("p", { class: "empty" }, "Loading …");
    const states = Object.entries(page.states), last = Math.min(this.offset + PAGE, page.matching);
    return [h("section", { class: "card", "aria-label": "Tables", "data-key": "list" },
      h("div", { class: "row filters" },
        h("label", { class: "wide" }, h("span", { class: "hidden" }, "Search tables"), h("input", { id: "q", type: "search", placeholder: "Search tables" })),
        h("label", null, h("span", { class: "hidden" }, "State"), h("select", { id: "state" }, h("option", { value: "" }, `all states (${number(page.total)})`), states.map(([state, n]) => h("option", { value: state }, `${state.replaceAll("_", " ")} (${number(n)})`)))),
        h("label", null, h("span", { class: "hidden" }, "Order of tables"), h("select", { id: "sort" }, Object.entries(SORTS).map(([value, words]) => h("option", { value }, words)))),
        h("button", { type: "button", class: "chip", "data-trouble": true, "aria-pressed": String(this.trouble) }, "With problems ", h("b", { class: "num" }, number(page.troubled))),
        h("span", { class: "grow" }),
        h("span", { role: "status", class: "dim" }, page.matching ? `${number(this.offset + 1)} to ${number(last)} of ${many(page.matching, "table")}` : "no table matches"),
        page.matching > PAGE && h("span", { class: "row" },
          h("button", { type: "button", "data-page": -1, disabled: this.offset === 0 }, "Previous"), h("button", { type: "button", "data-page": 1, disabled: last >= page.matching }, "Next"))),
      table("Tables", this.columns, page.rows, nameOf, { key: this.sort, desc: this.desc })),
    patternsView(p)];
  }

  change(target) {
    if (target.id === "q") this.q = target.value.trim();
    if (target.id === "state") this.state = target.value;
    if (target.id === "sort") Object.assign(this, { sort: target.value, desc: !isRising(target.value) });
    this.offset = 0;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.context.wake(), 200);
  }

  click(target) {
    const sort = target.closest("[data-sort]")?.dataset.sort, page = target.closest("[data-page]");
    if (sort) Object.assign(this, { desc: sort === this.sort ? !this.desc : !isRising(sort), sort, offset: 0 });
    else if (page) this.offset = Math.max(0, this.offset + PAGE * Number(page.dataset.page));
    else if (target.closest("[data-trouble]")) Object.assign(this, { trouble: !this.trouble, offset: 0 });
    else return false;
    this.context.wake();
    return true;
  }

  drawn() {
    const state = document.getElementById("state"), q = document.getElementById("q");
    if (state) state.value = this.state;
    const sort = document.getElementById("sort");
    if (sort) sort.value = this.sort;
    if (q && q !== document.activeElement) q.value = this.q;
  }
}
