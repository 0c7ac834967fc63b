// The part of a pipeline's view that shows one table whole.

import { offers } from "./acts.js";
import { ChunkMap } from "./chunkmap.js";
import { card, facts, h, inPlace, prose } from "./dom.js";
import { eventList } from "./events.js";
import { ago, bytes, many, number, seconds } from "./format.js";
import { groupTable } from "./groups.js";
import { position } from "./links.js";
import { requestList } from "./requests.js";
import { ask } from "./server.js";
import { changesOf, rowsOf, tableState, verifiedOf } from "./tables.js";
import { RESUME } from "./troubles.js";

/** What the copy has of a column of the source, if not its values under its name. */
const ruleOf = (rule) => (rule ? `: ${rule.action === "keep" ? "" : `${rule.action}${rule.length ? ` ${rule.length}` : ""} of `}${rule.column}` : "");

/** Definitions of a table, newest first. */
function definitionList(list) {
  return h("ol", { class: "definitions" }, [...list].reverse().map((d) => {
    const changed = typeof d.changed === "string" ? [d.changed] : d.changed ?? [];
    return h("li", null, d.since ? ["since ", h("code", null, d.since)] : "as it was planned", ": ",
      changed.length ? changed.map((one) => [h("code", null, String(one)), " "]) : many(Object.keys(d.columns ?? {}).length, "column"),
      d.key?.length ? `, key ${d.key.join(", ")}` : ", no key",
      d.where && [", only rows where ", h("code", null, d.where)],
      Object.keys(d.columns ?? {}).length > 0 && h("details", null, h("summary", null, many(Object.keys(d.columns).length, "column")), h("ul", null, Object.entries(d.columns).map(([column, type]) => h("li", null, h("code", null, column), ` ${type}${ruleOf(d.policies?.[column])}`)))));
  }));
}

/** What can be done with a table. Re-snapshotting a suspended table resumes it. */
const offered = (t) => (t.offers ?? []).map((one) => (one.act === "reread" && t.state === "suspended" ? { ...one, label: RESUME } : one));

export class OneTable {
  constructor(context) {
    Object.assign(this, { context, name: null, t: null, map: null });
  }

  open([name]) {
    const wanted = decodeURIComponent(name ?? "");
    if (wanted === this.name) return;
    Object.assign(this, { name: wanted, t: null, map: new ChunkMap(this.context.base, wanted) });
  }

  async load(signal) {
    this.t = await ask(`${this.context.base}/table?${new URLSearchParams({ table: this.name })}`, signal);
  }

  get mapped() {
    return this.t && this.t.first !== null && this.t.first !== undefined && this.t.chunks > 1;
  }

  /** The map needs its place in the document to know how wide it is. */
  async late(p, signal) {
    if (this.mapped && (!this.map.map || p.snapshot?.state !== "done")) await this.map.update(p.generation, signal);
  }

  draw(p) {
    const t = this.t;
    if (!t) return h("p", { class: "empty" }, "Loading …");
    return [
      h("section", { class: "card", "aria-label": this.name, "data-key": "table" },
        h("div", { class: "row" }, h("div", { class: "state grow" }, tableState(t)), p.may_act && h("span", { class: "acts" }, offers(offered(t), this.name))),
        facts(["Rows in the copy", rowsOf(t)], ["Changes since the snapshot", changesOf(t)],
          ["Size", t.bytes || t.files ? `${bytes(t.bytes)} in ${many(t.files ?? 0, "file")}` : null],
          ["Replaced and deleted rows, until the next compaction", t.dead_rows !== null && t.dead_rows !== undefined && number(t.dead_rows)],
          ["Compacted", t.compactions > 0 && [many(t.compactions, "time"), t.compacted_at && [", last ", ago(t.compacted_at), ` in ${seconds(t.compaction_seconds)}`]]],
          ["Compared with the source", verifiedOf(t)],
          ["Rows read by the snapshot", t.chunks > 0 && `${number(t.rows_read)} in ${many(t.chunks, "chunk")}${t.corrected ? `, ${number(t.corrected)} corrected by the binlog` : ""}`],
          ["Up to", typeof t.position === "string" ? h("code", null, t.position) : t.position && position(t.position)],
          ["As of", t.updated_at && ago(t.updated_at)])),
      this.mapped && inPlace(this.map.node),
      t.groups?.length > 0 && card("Chunk groups", {}, groupTable(p, t.groups)),
      t.requests?.length > 0 && card("Requests", {}, requestList(p, t.requests)),
      card("Events", {}, eventList(p, t.events ?? [], { withTable: false })),
      t.definitions?.length > 0 && card("Definitions", {}, definitionList(t.definitions)),
      t.explain && card("Explain a row", {},
        h("p", null, "This command shows which chunk read a row, which changes corrected it, and what changed it last. It shows values, which this page never does."),
        h("p", null, h("code", { id: "command", class: "command" }, prose(t.explain.command))),
        h("p", { class: "dim" }, prose(`${t.explain.hint}.`))),
    ];
  }
}
