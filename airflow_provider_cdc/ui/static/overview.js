// All pipelines, most severe first.

import { ago, ask, bytes, fill, h, many, number, rate, seconds, table } from "./dom.js";

let filter = "";
let last = null;

const address = (p) => `#/p/${p.book}/${encodeURIComponent(p.name)}`;

function tables(p) {
  const states = Object.entries(p.states).filter(([, n]) => n > 0 && n < p.tables);
  const parts = [many(p.tables, "table"), ...states.map(([state, n]) => `${number(n)} ${state}`)];
  if (p.groups && p.groups.done < p.groups.total) parts.push(`${number(p.groups.done)} of ${number(p.groups.total)} groups published`);
  return parts.join(", ");
}

const COLUMNS = [
  ["pipeline", (p) => [h("span", { class: `dot ${p.level}` }), h("a", { href: address(p) }, h("b", null, p.name)), p.dags.length ? h("small", null, ` ${p.dags.join(", ")}`) : h("small", null, " no DAG")]],
  ["phase", (p) => h("span", { class: p.level }, p.phase.replace("_", " "))],
  ["tables", tables],
  ["lag", (p) => seconds(p.lag_seconds), { r: true }],
  ["lag in bytes", (p) => bytes(p.lag_bytes), { r: true }],
  ["source keeps", (p) => (p.purge_hours === null ? "–" : seconds(p.purge_hours * 3600)), { r: true }],
  ["changes", (p) => rate(p.changes_per_second), { r: true }],
  ["problem", (p) => [p.says, p.error && h("div", { class: "error" }, p.error)], { text: true }],
  ["last event", (p) => p.event && [h("bdi", null, p.event.detail), " ", h("small", null, ago(p.event.at))], { text: true }],
];

function draw(main) {
  const { pipelines, troubles, unknown } = last;
  const wanted = pipelines.filter((p) => `${p.name} ${p.dags.join(" ")} ${p.phase}`.toLowerCase().includes(filter));
  const bad = pipelines.filter((p) => p.level === "failed").length;
  fill(main,
    h("div", { class: "top" }, h("h1", null, "CDC pipelines"),
      h("span", { class: `pill ${bad ? "failed" : "working"}`, role: "status" }, bad ? `${bad} of ${pipelines.length} need attention` : `${pipelines.length}, no problems`),
      h("span", { class: "grow" }),
      h("label", null, h("span", { class: "hidden" }, "Filter"), h("input", { id: "filter", type: "search", placeholder: "Filter by name, DAG, phase" }))),
    pipelines.length === 0 && h("p", { class: "empty" }, "No pipeline that you may see has run yet. Run a DAG with ", h("code", null, "cdc_pipeline"), ", or name the state databases of other pipelines in ", h("code", null, "[cdc] bookkeeping"), "."),
    pipelines.length > 0 && h("section", { class: "card", "aria-label": "Pipelines" }, table("Pipelines, most severe first", COLUMNS, wanted, address)),
    pipelines.length > 0 && wanted.length === 0 && h("p", { class: "empty" }, "No pipeline matches the filter."),
    troubles.length > 0 && h("section", { class: "card" }, h("h2", null, "State databases that cannot be read"), table("State databases that cannot be read", [
      ["where", (t) => h("code", null, t.where), { text: true }],
      ["why", (t) => t.message, { text: true }],
      ["what to do", (t) => t.remedy, { text: true }],
      ["DAGs", (t) => t.dags.join(", ")],
    ], troubles, (t) => t.where)),
    unknown.length > 0 && h("section", { class: "card" }, h("h2", null, "Tasks whose pipeline is unknown"),
      h("p", null, "The pipeline is a template, a file, or too long for Airflow to store. It becomes known when the task has run. Alternatively, name its state database in ", h("code", null, "[cdc] bookkeeping"), ": ", unknown.map((u) => `${u.dag}.${u.task}`).join(", "))));
  const box = document.getElementById("filter");
  box.oninput = () => { filter = box.value.trim().toLowerCase(); draw(main); };
}

export const overview = {
  every: 3000,
  title: "CDC pipelines",
  async update(main, signal) {
    last = await ask("api/pipelines", signal);
    draw(main);
  },
};
