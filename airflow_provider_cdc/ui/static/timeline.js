// The part of a pipeline's view that shows its timeline.

import { h } from "./dom.js";
import { eventList } from "./events.js";
import { ask } from "./server.js";

const PAGE = 50;

export class Timeline {
  constructor(context) {
    Object.assign(this, { context, kind: "", level: "", table: "", first: null, older: [], more: false });
  }

  /** rest: what stands behind the part in the address: `attention`, or nothing. */
  open([level]) {
    if (level === "attention") Object.assign(this, { kind: "", level, table: "", older: [] });
  }

  path(before) {
    const query = new URLSearchParams({ limit: PAGE, ...(this.kind && { kind: this.kind }), ...(this.level === "attention" ? { attention: 1 } : this.level && { level: this.level }), ...(this.table.includes(".") && { table: this.table }), ...(before && { before }) });
    return `${this.context.base}/events?${query}`;
  }

  async load(signal) {
    const found = await ask(this.path(), signal);
    if (!this.older.length) this.more = found.more;
    this.first = found;
  }

  /** Every event that is shown once, though new ones have come since the older ones were asked for. */
  get events() {
    const lowest = this.first.events.at(-1)?.id ?? Infinity;
    return [...this.first.events, ...this.older.filter((one) => one.id < lowest)];
  }

  draw(p) {
    if (!this.first) return h("p", { class: "empty" }, "Loading …");
    return h("section", { class: "card", "aria-label": "Timeline" },
      h("div", { class: "row filters" },
        h("label", null, "Kind ", h("select", { id: "kind", "data-filter": "kind" }, h("option", { value: "" }, "all"), this.first.kinds.map((one) => h("option", { value: one.kind }, one.label)))),
        h("label", null, "Severity ", h("select", { id: "level", "data-filter": "level" }, [["", "all"], ["attention", "needs attention"], ["failed", "failures"], ["failed,warning", "failures and warnings"]].map(([value, words]) => h("option", { value }, words)))),
        h("label", null, "Table ", h("input", { id: "event-table", "data-filter": "table", type: "search", placeholder: "database.table" }))),
      eventList(p, this.events),
      this.more && h("button", { type: "button", "data-older": true }, "Older events"));
  }

  async change(target) {
    this[target.dataset.filter] = target.value.trim();
    this.older = [];
    this.context.wake();
  }

  async click(target) {
    if (!target.closest("[data-older]")) return false;
    const found = await ask(this.path(this.events.at(-1)?.id));
    this.older.push(...found.events);
    this.more = found.more;
    this.context.redraw();
    return true;
  }

  drawn() {
    for (const name of ["kind", "level"]) {
      const choice = document.getElementById(name);
      if (choice) choice.value = this[name];
    }
  }
}
