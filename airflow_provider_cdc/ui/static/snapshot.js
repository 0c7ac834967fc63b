// The part of a pipeline's view that shows its snapshot: progress, chunks and chunk groups.

import { ChunkMap } from "./chunkmap.js";
import { facts, h, inPlace } from "./dom.js";
import { ago, lasting, many, number, percent, rate, seconds } from "./format.js";
import { groupState, groupTable } from "./groups.js";
import { ask } from "./server.js";

const PAGE = 20;

export class Snapshot {
  constructor(context) {
    Object.assign(this, { context, map: new ChunkMap(context.base), state: "", offset: 0, page: null, unfolded: false, drawn_once: false });
  }

  async load(signal) {
    const { p } = this.context;
    if (!this.state && !this.offset) {
      this.page = null; // the pipeline's own answer has the failed and the running ones
      if (!p || p.groups?.shown?.length) return;
    }
    const query = new URLSearchParams({ limit: PAGE, offset: this.offset, ...(this.state && { state: this.state }) });
    this.page = await ask(`${this.context.base}/groups?${query}`, signal);
  }

  get isOver() {
    return this.context.p?.snapshot?.state === "done";
  }

  async late(p, signal) {
    if (p.snapshot && (!this.isOver || this.unfolded)) await this.map.update(p.generation, signal);
  }

  mapView() {
    const node = inPlace(this.map.node);
    if (!this.isOver) return h("div", { "data-key": "map" }, node);
    return h("div", { "data-key": "folded" }, h("button", { type: "button", "data-unfold": true, "aria-expanded": String(this.unfolded) }, this.unfolded ? "Hide the chunks" : "Show the chunks"), this.unfolded && node);
  }

  draw(p) {
    const snap = p.snapshot;
    if (!snap) return h("p", { class: "empty" }, "No snapshot is planned yet.");
    const states = Object.entries(p.groups?.states ?? {}).filter(([, n]) => n > 0);
    const groups = this.page?.rows ?? p.groups?.shown ?? [], matching = this.page?.matching ?? groups.length;
    const times = (
      h("section", { class: "card", "aria-label": "Snapshot", "data-key": "facts" }, facts(
        ["Planned", ago(snap.planned_at)], ["Began", snap.begun_at ? ago(snap.begun_at) : null], ["Complete", snap.finished_at && ago(snap.finished_at)],
        ["Took", this.isOver && snap.seconds && seconds(snap.seconds)],
        ["Tables", number(snap.tables)], ["Chunks", this.isOver && number(snap.chunks)],
        ["Rows", this.isOver && `${number(snap.rows)}${snap.rows_per_second ? `, ${rate(snap.rows_per_second)}` : ""}`],
        ["Corrected by the binlog", snap.corrected > 0 && many(snap.corrected, "row")], ["Counted", snap.counted_at && !this.isOver && ago(snap.counted_at)])));
    return [
      this.isOver && times,
      this.mapView(),
      h("section", { class: "card", "aria-label": "Chunk groups", "data-key": "groups" },
        h("div", { class: "row filters" }, h("h2", null, "Chunk groups"), h("span", { class: "grow" }),
          h("label", null, h("span", { class: "hidden" }, "State of groups"), h("select", { id: "group-state" }, h("option", { value: "" }, this.isOver || !p.groups?.shown?.length ? `all (${number(p.groups?.total)})` : "failed and running"), states.map(([state, n]) => h("option", { value: state }, `${groupState(state)} (${number(n)})`)))),
          this.page && matching > PAGE && h("span", { class: "row" }, h("button", { type: "button", "data-page": -1, disabled: this.offset === 0 }, "Previous"), h("button", { type: "button", "data-page": 1, disabled: this.offset + PAGE >= matching }, "Next"))),
        groups.length ? groupTable(p, groups) : h("p", { class: "dim" }, `${many(p.groups?.total ?? 0, "group")}. Choose a state to see them.`)),
      !this.isOver && times,
    ];
  }

  change(target) {
    if (target.id !== "group-state") return;
    Object.assign(this, { state: target.value, offset: 0 });
    this.context.wake();
  }

  click(target) {
    const page = target.closest("[data-page]");
    if (page) this.offset = Math.max(0, this.offset + PAGE * Number(page.dataset.page));
    else if (target.closest("[data-unfold]")) this.unfolded = !this.unfolded;
    else return false;
    this.context.redraw();
    this.context.wake();
    return true;
  }

  drawn() {
    const choice = document.getElementById("group-state");
    if (choice) choice.value = this.state;
  }
}

/** One line for each phase; what is over takes little room. */
export function phases(p) {
  const snap = p.snapshot, stream = p.stream, step = (state, name, ...words) => h("li", { class: state }, h("b", null, name), " ", h("span", null, words));
  const whole = snap?.state === "done", share = snap ? percent(snap.done, snap.chunks) : 0;
  const groups = p.groups?.states ?? {};
  return h("ol", { class: "phases", "aria-label": "Phases" },
    step(snap ? "done" : "live", "Plan", snap ? [ago(snap.planned_at), h("small", null, `, ${many(snap.tables, "table")}`)] : "not yet"),
    step(whole ? "done" : groups.failed ? "bad" : snap?.begun_at ? "live" : "", "Snapshot",
      whole ? ["complete ", ago(snap.finished_at), h("small", null, `, ${many(snap.rows, "row")}${snap.seconds ? ` in ${seconds(snap.seconds)}` : ""}`)] : snap?.begun_at ? [`${share} %`, h("small", null, ", began ", ago(snap.begun_at))] : "not yet"),
    step(!stream ? "" : ["failed", "lost"].includes(p.phase) ? "bad" : p.phase === "streaming" ? "live" : "done", "Stream",
      !stream ? (whole ? "waits for its task" : "not yet") : p.phase === "streaming" ? ["began ", ago(stream.started_at)] : p.phase === "lost" ? ["no sign of life for ", lasting(stream.heartbeat_at)] : p.stopped_at ? [p.phase === "failed" ? "failed " : "ended ", ago(p.stopped_at)] : ["began ", ago(stream.started_at)]));
}
