// The part of a pipeline's view that shows its stream: where it is, what it was asked to do, its batches and its runs.

import { Chart } from "./chart.js";
import { card, facts, h, inPlace, prose, table } from "./dom.js";
import { ago, bytes, many, number, rate, seconds } from "./format.js";
import { position, sparkLink, taskLink } from "./links.js";
import { requestList } from "./requests.js";
import { ask } from "./server.js";

const BATCHES = [
  ["when", (b) => ago(b.at)],
  ["changes", (b) => number(b.changes), { r: true }],
  ["binlog", (b) => bytes(b.bytes), { r: true }],
  ["took", (b) => seconds(b.seconds), { r: true }],
  ["lag, median", (b) => seconds(b.lag_p50), { r: true }],
  ["lag, 95 %", (b) => seconds(b.lag_p95), { r: true }],
  ["up to", (b) => position(b.to), { text: true }],
];
const RUNS = [
  ["run", (r) => String(r.epoch)],
  ["state", (r) => [r.state.replaceAll("_", " "), r.stop_by && h("small", { class: "line" }, `by ${r.stop_by}`)]],
  ["host", (r) => r.host, { text: true }],
  ["began", (r) => ago(r.started_at)],
  ["last sign of life", (r) => ago(r.heartbeat_at)],
  ["changes", (r) => number(r.changes), { r: true }],
  ["error", (r) => r.error && h("div", { class: "error" }, prose(r.error)), { text: true }],
];

export class Stream {
  constructor(context) {
    this.context = context;
    this.changes = new Chart("Changes per second", [{ name: "changes", column: 1, cls: "p50" }], rate);
    this.merges = new Chart("Time to commit a batch", [{ name: "median", column: 5, cls: "p50" }, { name: "longest", column: 6, cls: "p95" }], seconds);
    this.batches = this.runs = null;
  }

  async load(signal) {
    [this.batches, this.runs] = await Promise.all([ask(`${this.context.base}/batches?limit=20`, signal), ask(`${this.context.base}/runs?limit=20`, signal)]);
  }

  /** Called with the same data as the chart of the lag. */
  chart(lag) {
    this.changes.update(lag);
    this.merges.update(lag);
  }

  draw(p) {
    const s = p.stream;
    return [
      s && h("section", { class: "card", "aria-label": "Stream", "data-key": "facts" }, facts(
        ["Supervised by", s.supervisor && [taskLink(s.supervisor), s.supervised_at && h("small", null, " ", ago(s.supervised_at))]],
        ["Runs on", [s.host, sparkLink(s.ui) && [", ", sparkLink(s.ui)]]],
        ["Log of the driver", s.log && h("code", null, s.log)],
        ["Run", [`${s.epoch}, began `, ago(s.started_at)]],
        ["Last sign of life", !s.alive && s.heartbeat_at && ago(s.heartbeat_at)],
        ["Changes in this run", `${number(s.changes)} in ${many(s.batches, "batch", "batches")}, ${bytes(s.bytes)} of binlog`],
        ["Time to commit a batch", s.merge_seconds !== null && s.merge_seconds !== undefined && seconds(s.merge_seconds)],
        ["Read up to", s.at?.file && [position(s.at), s.progress_at && h("small", null, " ", ago(s.progress_at))]],
        ["Transactions up to", s.at?.gtid_set && h("code", null, s.at.gtid_set)],
        ["Index of keys", s.index_bytes > 0 && `${bytes(s.index_bytes)} in memory${s.index_disk_bytes ? `, ${bytes(s.index_disk_bytes)} on disk` : ""}`])),
      h("div", { class: "two", "data-key": "charts" },
        h("section", { class: "card" }, h("h2", null, "Changes per second"), inPlace(this.changes.node)),
        h("section", { class: "card" }, h("h2", null, "Time to commit a batch"), inPlace(this.merges.node))),
      p.requests?.length > 0 && card("Requests", {}, requestList(p, p.requests)),
      this.batches?.batches.length > 0 && card("Newest batches", {}, table("Newest batches", BATCHES, this.batches.batches, (b) => `${b.epoch}.${b.batch}`)),
      this.runs?.runs.length > 0 && card("Runs", {}, table("Runs", RUNS, this.runs.runs, (r) => `run ${r.epoch}`)),
      !s && h("p", { class: "empty" }, "The stream has not begun yet."),
    ];
  }
}
