// Line charts in SVG: time from left to right. The axis begins where the data begin.

import { fill, h, s } from "./dom.js";
import { ago, clock as moment } from "./format.js";

const H = 150, BOTTOM = 20, TOP = 8, RIGHT = 8;
//: Least width, in which all labels of the axis have room.
const NARROWEST = 260;
//: Width of a character of a label, and the margin around the label.
const CHARACTER = 6.6, FREE = 10;
//: The shortest time that an axis shows, and the share of an axis that may be empty before its first point.
const SHORTEST = 60, EMPTY = 0.4;

const NO_DATA = "no data yet";

const iso = (t) => new Date(t * 1000).toISOString();

/** A round number at or above `n`. */
function ceiling(n) {
  if (!(n > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((m) => m * ten).find((m) => m >= n * 0.999);
}

function clock(t, span) {
  const how = span > 86400 ? { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", ...(span < 600 && { second: "2-digit" }) };
  return new Date(t * 1000).toLocaleString("en-GB", how);
}

/** A path through values, which is interrupted where none is for several steps. Points that stand alone are circles. */
function line(points, column, step, x, y) {
  const runs = [];
  let last = null;
  for (const p of points) {
    if (p[column] === null) continue;
    if (last === null || p[0] - last >= 4 * step) runs.push([]);
    runs.at(-1).push(p);
    last = p[0];
  }
  const place = (p) => `${x(p[0]).toFixed(1)},${y(p[column]).toFixed(1)}`;
  return {
    path: runs.filter((run) => run.length > 1).map((run) => `M${run.map(place).join("L")}`).join(""),
    dots: runs.filter((run) => run.length === 1).map(([p]) => [x(p[0]), y(p[column])]),
  };
}

/** A chart that says the value under the pointer, or at the place that the arrow keys have chosen. */
export class Chart {
  /** series: [{name, column, cls}]; say: formats a value. */
  constructor(label, series, say) {
    Object.assign(this, { label, series, say, at: null, used: [], data: null });
    this.svg = s("svg", { class: "chart", "aria-hidden": "true" });
    this.plot = h("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0 }, this.svg);
    this.legend = h("ul", { class: "legend" });
    this.node = h("figure", { "data-own": true, "data-key": `chart ${label}` }, this.plot, this.legend);
    new ResizeObserver(() => this.data && this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.choose(null));
    this.plot.addEventListener("keydown", (event) => this.press(event));
    this.plot.addEventListener("blur", () => this.choose(null));
  }

  /** data: {since, until, newest, step, points: [[time, value, ...]]}; newest: time of the newest value. */
  update(data) {
    const chosen = this.at === null ? null : this.used[this.at]?.[0];
    this.data = data;
    this.used = data.points.filter((p) => this.series.some((one) => p[one.column] !== null));
    const same = this.used.findIndex((p) => p[0] === chosen);
    this.at = same < 0 ? null : same;
    this.draw();
  }

  get span() {
    const { since, until, step } = this.data, first = this.used[0]?.[0];
    const begin = first !== undefined && first - since > EMPTY * (until - since) ? first - step : since;
    return [Math.min(begin, until - SHORTEST), until];
  }

  get wide() {
    return Math.max(NARROWEST, this.plot.clientWidth);
  }

  draw() {
    const W = this.wide;
    this.svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    const { step } = this.data, { used, series, say } = this, [since, until] = this.span;
    const top = ceiling(Math.max(...used.flatMap((p) => series.map((one) => p[one.column] ?? 0)), 0));
    const left = (this.left = FREE + CHARACTER * Math.max(...[0, 0.5, 1].map((part) => say(top * part).length)));
    const x = (t) => left + ((W - left - RIGHT) * (t - since)) / (until - since);
    const y = (v) => H - BOTTOM - ((H - BOTTOM - TOP) * v) / top;
    const chosen = this.at === null ? null : used[this.at];
    const lines = series.map((one) => ({ ...one, ...line(used, one.column, step, x, y) }));
    fill(this.svg,
      [0, 0.5, 1].map((part) => [
        s("line", { class: "grid", x1: left, x2: W - RIGHT, y1: y(top * part), y2: y(top * part) }),
        s("text", { x: left - 6, y: y(top * part) + 4, "text-anchor": "end" }, say(top * part)),
      ]),
      [0, 0.5, 1].map((part) => s("text", { x: x(since + (until - since) * part), y: H - 4, "text-anchor": ["start", "middle", "end"][part * 2] }, clock(since + (until - since) * part, until - since))),
      lines.map((one) => [
        s("path", { class: one.cls, d: one.path, "vector-effect": "non-scaling-stroke" }),
        one.dots.map(([cx, cy]) => s("circle", { class: `spot ${one.cls}`, cx, cy, r: 3 })),
      ]),
      chosen && s("line", { class: "cross", x1: x(chosen[0]), x2: x(chosen[0]), y1: TOP, y2: H - BOTTOM }),
      chosen && series.map((one) => chosen[one.column] !== null && s("circle", { class: `spot ${one.cls}`, cx: x(chosen[0]), cy: y(chosen[one.column]), r: 3.5 })));
    const shown = chosen ?? used.at(-1), at = shown && moment(iso(chosen ? chosen[0] : this.data.newest));
    fill(this.legend,
      series.map((one) => h("li", null, h("span", { class: `key ${one.cls}` }), `${one.name} `, h("b", { class: "num" }, shown ? say(shown[one.column]) : "–"))),
      h("li", { class: "when" }, !shown ? NO_DATA : chosen ? ["at ", at] : ["newest ", ago(iso(this.data.newest)), ", at ", at]));
    const values = shown ? series.map((one) => `${one.name} ${say(shown[one.column])}`).join(", ") : NO_DATA;
    for (const [name, value] of [["valuemax", Math.max(used.length - 1, 0)], ["valuenow", this.at ?? Math.max(used.length - 1, 0)], ["valuetext", shown ? `${values}, at ${at.textContent}` : values]]) this.plot.setAttribute(`aria-${name}`, value);
  }

  choose(at) {
    if (at === this.at || !this.data) return;
    this.at = at;
    this.draw();
  }

  point(event) {
    if (!this.used.length) return;
    const W = this.wide, box = this.svg.getBoundingClientRect(), [since, until] = this.span;
    const x = ((event.clientX - box.left) * W) / box.width;
    const time = since + ((x - this.left) / (W - this.left - RIGHT)) * (until - since);
    let best = 0;
    this.used.forEach((p, n) => { if (Math.abs(p[0] - time) < Math.abs(this.used[best][0] - time)) best = n; });
    this.choose(best);
  }

  press(event) {
    const last = this.used.length - 1, at = this.at ?? last + 1;
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: last, PageUp: at + 10, PageDown: at - 10 }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(last, to)));
  }
}

/** A small line without axes. values: numbers or nulls at equal distances, the oldest first. */
export function sparkline(values, label, wide = 96, high = 24) {
  const known = (values ?? []).filter((v) => v !== null);
  if (!known.length) return "–";
  const top = Math.max(...known) || 1;
  const x = (n) => 2 + ((wide - 4) * n) / Math.max(values.length - 1, 1), y = (v) => high - 2 - ((high - 4) * v) / top;
  const drawn = line(values.map((v, n) => [n, v]), 1, 1, x, y);
  return s("svg", { class: "spark", viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": label },
    s("path", { class: "p50", d: drawn.path }),
    drawn.dots.map(([cx, cy]) => s("circle", { class: "spot p50", cx, cy, r: 1.8 })));
}
