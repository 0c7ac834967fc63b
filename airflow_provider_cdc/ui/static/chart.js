// A line chart in SVG: time from left to right, and one line for each series.

import { s, h } from "./dom.js";

const W = 400, H = 130, BOTTOM = 18, TOP = 8;
//: Width of a character of a label, and the margin around the label.
const CHARACTER = 6.4, FREE = 10;

/** A round number at or above `n`. */
function ceiling(n) {
  if (!(n > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((m) => m * ten).find((m) => m >= n * 0.999);
}

const clock = (t, long) => new Date(t * 1000).toLocaleString("en-GB", long ? { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit" });

/**
 * data: {since, until, step, points: [[time, value, ...]]}; series: [{name, column, cls}]; say: formats a value.
 * Returns nodes. To a screen reader the chart is one image, with the newest values in its name.
 */
export function chart(label, data, series, say) {
  const { since, until, step, points } = data;
  const used = points.filter((p) => series.some((line) => p[line.column] !== null));
  const newest = used.at(-1);
  const words = newest
    ? series.map((line) => `${line.name} ${say(newest[line.column])}`).join(", ")
    : "no values in this time";
  const top = ceiling(Math.max(...used.flatMap((p) => series.map((line) => p[line.column] ?? 0)), 0));
  const left = FREE + CHARACTER * Math.max(...[0, 0.5, 1].map((part) => say(top * part).length));
  const x = (t) => left + ((W - left - 6) * (t - since)) / (until - since);
  const y = (v) => H - BOTTOM - ((H - BOTTOM - TOP) * v) / top;
  const path = (column) => {
    let d = "", last = null;
    for (const p of used) {
      if (p[column] === null) continue;
      d += `${last !== null && p[0] - last < 4 * step ? "L" : "M"}${x(p[0]).toFixed(1)},${y(p[column]).toFixed(1)}`;
      if (last === null || p[0] - last >= 4 * step) d += "h1";
      last = p[0];
    }
    return d;
  };
  const long = until - since > 86400;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${label}: ${words}` },
    [0, 0.5, 1].map((part) => [
      s("line", { class: "grid", x1: left, x2: W - 6, y1: y(top * part), y2: y(top * part) }),
      s("text", { x: left - 6, y: y(top * part) + 4, "text-anchor": "end" }, say(top * part)),
    ]),
    [0, 0.5, 1].map((part) => s("text", { x: x(since + (until - since) * part), y: H - 4, "text-anchor": ["start", "middle", "end"][part * 2] }, clock(since + (until - since) * part, long))),
    series.map((line) => s("path", { class: line.cls, d: path(line.column), "vector-effect": "non-scaling-stroke" })));
  return [svg, h("ul", { class: "legend" },
    series.map((line) => h("li", null, h("span", { class: `key ${line.cls}` }), `${line.name} ${newest ? say(newest[line.column]) : "–"}`)))];
}
