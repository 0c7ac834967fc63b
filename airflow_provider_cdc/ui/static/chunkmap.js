// The map of chunks: one cell for each chunk, or for a band of chunks. Fetched as runs, afterwards only what changed.

import { ask, h, number, seconds, bytes } from "./dom.js";

const WORDS = {
  waiting: "waiting", reading: "being read", read: "read, not yet published", published: "published",
  corrected: "published, corrected by the binlog", retried: "published by a later attempt", failed: "failed, waiting for a retry",
};
//: States in order of importance. A band shows its most important state.
const FIRST = ["failed", "reading", "read", "waiting", "retried", "corrected", "published"];
const SMALLEST = 5, HEIGHT = 190, MOST_GROUPS = 300;

export class ChunkMap {
  constructor(base) {
    this.base = base;
    this.generation = null;
    this.versions = new Map();
    this.states = new Uint8Array(0);
    this.tables = [];
    this.select = h("select", { "aria-label": "Table shown in the map" });
    this.canvas = h("canvas", { tabindex: 0, role: "slider", "aria-label": "Chunk", "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0 });
    this.canvas.style.height = `${HEIGHT}px`;
    this.detail = h("p", { class: "detail dim", id: "chunk-detail", "aria-live": "polite" }, "Point at a cell, or move with the arrow keys, to see a chunk.");
    this.legend = h("ul", { class: "legend" });
    this.title = h("h2", null, "Chunks");
    this.node = h("section", { class: "card", "data-own": true, "aria-label": "Chunks" },
      h("div", { class: "top" }, this.title, h("span", { class: "grow" }), this.select), this.canvas, this.legend, this.detail);
    this.select.addEventListener("change", () => { this.at = null; this.draw(); });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Update the map. Only groups that have changed or are being read are fetched. */
  async update(pipeline, signal) {
    const path = `${this.base}/chunks?generation=${pipeline.generation}`;
    if (pipeline.generation !== this.generation) {
      const all = await ask(path, signal);
      this.names = all.states;
      this.tables = all.tables.map(([database, name, first, count]) => ({ label: `${database}.${name}`, first, count }));
      this.states = new Uint8Array(this.tables.reduce((end, t) => Math.max(end, t.first + t.count), 0));
      this.generation = pipeline.generation;
      this.select.replaceChildren(h("option", { value: "" }, "all tables"), ...this.tables.map((t, n) => h("option", { value: n }, t.label)));
      this.take(all.runs);
    } else {
      const changed = pipeline.groups_list.filter((g) => this.versions.get(g.no) !== g.version || g.state === "running" || g.state === "rereading");
      if (changed.length) {
        const some = changed.length <= MOST_GROUPS ? `&groups=${changed.map((g) => g.no).join(",")}` : "";
        this.take((await ask(path + some, signal)).runs);
      }
    }
    this.versions = new Map(pipeline.groups_list.map((g) => [g.no, g.version]));
  }

  take(runs) {
    this.asked = (this.asked ?? 0) + 1;
    for (const [first, count, code] of runs) this.states.fill(code, first, first + count);
    this.canvas.dataset.updates = this.asked;
    this.draw();
  }

  get shown() {
    const table = this.select.value === "" ? null : this.tables[Number(this.select.value)];
    return table ?? { label: "all tables", first: this.tables[0]?.first ?? 0, count: this.states.length - (this.tables[0]?.first ?? 0) };
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { first, count } = this.shown, width = this.canvas.clientWidth, ratio = devicePixelRatio;
    if (!width || !this.names) return;
    const size = Math.min(24, Math.max(SMALLEST, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(count, 1)))));
    const columns = Math.max(1, Math.floor(width / size)), rows = Math.floor(HEIGHT / size);
    const band = Math.max(1, Math.ceil(count / (columns * rows)));
    Object.assign(this, { size, columns, band });
    const height = Math.ceil(Math.ceil(count / band) / columns) * size || size;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const paper = this.canvas.getContext("2d"), style = getComputedStyle(this.legend);
    paper.scale(ratio, ratio);
    const colours = this.names.map((name) => this.colour(name, style));
    const order = this.names.map((name) => FIRST.indexOf(name));
    const sums = new Array(this.names.length).fill(0);
    for (let cell = 0, no = 0; no < count; cell++) {
      let worst = this.states[first + no];
      for (const end = Math.min(no + band, count); no < end; no++) {
        const state = this.states[first + no];
        sums[state]++;
        if (order[state] < order[worst]) worst = state;
      }
      paper.fillStyle = colours[worst];
      paper.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
    }
    if (this.at !== null && this.at !== undefined) {
      const cell = Math.floor((this.at - first) / band);
      paper.strokeStyle = style.color;
      paper.lineWidth = 2;
      paper.strokeRect((cell % columns) * size - 0.5, Math.floor(cell / columns) * size - 0.5, size, size);
    }
    this.canvas.setAttribute("aria-valuemin", first);
    this.canvas.setAttribute("aria-valuemax", first + Math.max(count - 1, 0));
    if (!this.canvas.hasAttribute("aria-valuetext")) this.canvas.setAttribute("aria-valuetext", "no chunk chosen");
    this.title.textContent = `Chunks of ${this.shown.label}: ${number(count)}${band > 1 ? `, ${number(band)} to a cell` : ""}`;
    this.legend.replaceChildren(...this.names.map((name, n) => h("li", { "data-state": name }, h("span", { class: `swatch ${name}` }), `${WORDS[name]} `, h("span", { class: "num" }, number(sums[n])))));
  }

  colour(name, style) {
    const probe = document.createElement("span");
    probe.className = `swatch ${name}`;
    this.legend.append(probe);
    const found = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return found || style.color;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const cell = Math.floor((event.clientY - box.top) / this.size) * this.columns + Math.min(this.columns - 1, Math.floor((event.clientX - box.left) / this.size));
    this.choose(this.shown.first + cell * this.band);
  }

  press(event) {
    const { first, count } = this.shown, row = this.columns * this.band;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, PageDown: row * 10, PageUp: -row * 10 };
    const at = this.at ?? first - 1;
    const to = event.key === "Home" ? first : event.key === "End" ? first + count - 1 : event.key in steps ? at + steps[event.key] : null;
    if (to === null) return;
    event.preventDefault();
    this.choose(Math.max(first, Math.min(first + count - 1, to)));
  }

  choose(no) {
    const { first, count } = this.shown;
    if (no < first || no >= first + count || no === this.at) return;
    this.at = no;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(no).catch(() => {}), 120);
  }

  async look(no) {
    const c = await ask(`${this.base}/chunks/${no}?generation=${this.generation}`);
    if (this.at !== no) return;
    const state = WORDS[this.names[this.states[no]]];
    const words = [
      `chunk ${number(no)} of ${c.table}, group ${c.group}: ${state}`,
      c.lw && `low watermark ${c.lw}, high ${c.hw}`,
      c.rows !== null && `${number(c.rows)} rows, ${number(c.corrected ?? 0)} corrected, ${bytes(c.bytes)}, ${seconds(c.seconds)}`,
      `attempt ${c.attempt || c.group_attempt}`,
      c.holder && `read by ${c.holder}`,
    ].filter(Boolean);
    this.canvas.setAttribute("aria-valuenow", no);
    this.canvas.setAttribute("aria-valuetext", words.join(". "));
    this.detail.replaceChildren(...words.flatMap((line) => [line, h("br")]));
  }
}
