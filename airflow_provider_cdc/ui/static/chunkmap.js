// The map of chunks: one cell for each chunk, or for a band of chunks. The server says the state of each cell.

import { fill, h, prose } from "./dom.js";
import { bytes, many, number, seconds } from "./format.js";
import { ask } from "./server.js";
import { taskLink } from "./links.js";

const WORDS = {
  waiting: "waiting", reading: "being read", read: "read, not in the copy yet", published: "in the copy",
  corrected: "in the copy, corrected by the binlog", retried: "in the copy by a later attempt", failed: "failed, waiting for a retry",
};
const SMALLEST = 5, HEIGHT = 190;

export class ChunkMap {
  /** table: `database.table`, or null for all tables. */
  constructor(base, table = null) {
    Object.assign(this, { base, table, map: null, at: null });
    this.canvas = h("canvas", { tabindex: 0, role: "slider", "aria-label": "Chunk", "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no chunk chosen" });
    this.canvas.style.height = `${HEIGHT}px`;
    this.detail = h("p", { class: "detail dim", id: "chunk-detail", "aria-live": "polite" }, "Point at a cell, or move with the arrow keys, to see a chunk.");
    this.legend = h("ul", { class: "legend" });
    this.title = h("h2", null, "Chunks");
    this.node = h("section", { class: "card", "data-own": true, "data-key": `chunks ${table ?? ""}`, "aria-label": "Chunks" }, this.title, this.canvas, this.legend, this.detail);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** As many cells as have room. A change of the width does not change the number much, so that the answers stay valid. */
  get room() {
    const width = Math.max(this.canvas.clientWidth || 600, 100);
    return Math.max(100, Math.min(4000, Math.floor((Math.floor(width / SMALLEST) * Math.floor(HEIGHT / SMALLEST)) / 100) * 100));
  }

  async update(generation, signal) {
    const query = new URLSearchParams({ generation, cells: this.room, ...(this.table && { table: this.table }) });
    const map = await ask(`${this.base}/chunks?${query}`, signal);
    if (map === this.map) return;
    this.map = map;
    this.generation = generation;
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const width = this.canvas.clientWidth, ratio = devicePixelRatio;
    if (!width || !this.map) return;
    const { first, chunks, per_cell, states, counts } = this.map, cells = this.map.cells.length;
    const size = Math.min(24, Math.max(SMALLEST, Math.floor(Math.sqrt((width * HEIGHT) / Math.max(cells, 1)))));
    const columns = Math.max(1, Math.floor(width / size)), height = Math.ceil(cells / columns) * size || size;
    Object.assign(this, { size, columns });
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const paper = this.canvas.getContext("2d"), style = getComputedStyle(this.legend);
    paper.scale(ratio, ratio);
    const colours = states.map((name) => this.colour(name, style));
    for (let cell = 0; cell < cells; cell++) {
      paper.fillStyle = colours[Number(this.map.cells[cell])];
      paper.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
    }
    if (this.at !== null) {
      const cell = Math.floor((this.at - first) / per_cell);
      paper.strokeStyle = style.color;
      paper.lineWidth = 2;
      paper.strokeRect((cell % columns) * size - 0.5, Math.floor(cell / columns) * size - 0.5, size, size);
    }
    this.canvas.setAttribute("aria-valuemin", first);
    this.canvas.setAttribute("aria-valuemax", first + Math.max(chunks - 1, 0));
    fill(this.title, prose(`Chunks of ${this.table ?? "all tables"}: ${number(chunks)}${per_cell > 1 ? `, ${number(per_cell)} to a cell` : ""}`));
    this.legend.replaceChildren(...states.map((name) => h("li", { "data-state": name }, h("span", { class: `swatch ${name}` }), `${WORDS[name] ?? name} `, h("span", { class: "num" }, number(counts[name] ?? 0)))));
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
    if (!this.map || !this.size) return;
    const box = this.canvas.getBoundingClientRect();
    const cell = Math.floor((event.clientY - box.top) / this.size) * this.columns + Math.min(this.columns - 1, Math.floor((event.clientX - box.left) / this.size));
    this.choose(this.map.first + cell * this.map.per_cell);
  }

  press(event) {
    if (!this.map) return;
    const { first, chunks, per_cell } = this.map, row = this.columns * per_cell, last = first + chunks - 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, PageDown: row * 10, PageUp: -row * 10 };
    const at = this.at ?? first - 1;
    const to = event.key === "Home" ? first : event.key === "End" ? last : event.key in steps ? at + steps[event.key] : null;
    if (to === null) return;
    event.preventDefault();
    this.choose(Math.max(first, Math.min(last, to)));
  }

  choose(no) {
    const { first, chunks } = this.map;
    if (no < first || no >= first + chunks || no === this.at) return;
    this.at = no;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(no).catch((error) => { this.detail.textContent = `${error.message}.`; }), 120);
  }

  async look(no) {
    const c = await ask(`${this.base}/chunks/${no}?generation=${this.generation}`);
    if (this.at !== no) return;
    const { first, per_cell, states, cells } = this.map;
    // A band has one state for all of its chunks: what the chunk's own row says is less, but true of it.
    const state = per_cell === 1 ? states[Number(cells[no - first])] : { pending: "waiting", done: c.corrected > 0 ? "corrected" : "published" }[c.state] ?? c.state;
    const words = [
      `chunk ${number(no)} of ${c.table}, group ${c.group}: ${WORDS[state] ?? state}`,
      c.lw && `read between ${c.lw} and ${c.hw}`,
      c.rows !== null && `${many(c.rows, "row")}, ${number(c.corrected ?? 0)} corrected, ${bytes(c.bytes)}, ${seconds(c.seconds)}`,
      `attempt ${c.attempt || c.group_attempt}`,
    ].filter(Boolean);
    this.canvas.setAttribute("aria-valuenow", no);
    this.canvas.setAttribute("aria-valuetext", words.join(". "));
    fill(this.detail, words.map((line) => [prose(line), h("br")]), c.reader && ["read by ", taskLink(c.reader)]);
  }
}
