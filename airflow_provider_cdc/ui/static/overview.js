// All pipelines, most severe first.

import { sparkline } from "./chart.js";
import { card, fill, h, named, plain, prose, table } from "./dom.js";
import { ago, asOf, bytes, lasting, many, number, percent, rate, seconds, until } from "./format.js";
import { dagLink, pipelineAddress, placeOf } from "./links.js";
import { ask } from "./server.js";
import { LEVELS, PHASES, phaseLevel, sentence } from "./troubles.js";

const SORTS = {
  severity: ["most severe first", null],
  lag: ["furthest behind first", (a, b) => (b.lag_seconds ?? -1) - (a.lag_seconds ?? -1)],
  changed: ["last changed first", (a, b) => String(b.last_change_at ?? "").localeCompare(a.last_change_at ?? "")],
  name: ["by name", (a, b) => a.name.localeCompare(b.name)],
};
let filter = "", level = null, order = "severity", last = null;

function name(p) {
  const title = p.book ? h("a", { href: pipelineAddress(p) }, h("b", null, named(p.name))) : h("b", null, named(p.name));
  return [h("span", { class: `dot ${p.level}` }), title,
    h("small", { class: "line" }, prose(p.source?.label ?? p.where)),
    h("small", { class: "line" }, p.dags.length ? p.dags.map((dag, n) => [n > 0 && ", ", dagLink(dag)]) : "no DAG")];
}

function since(p) {
  if (p.phase === "paused") return p.paused_at && ["since ", ago(p.paused_at), p.paused_by && `, by ${p.paused_by}`];
  if (p.stopped_at) return [ago(p.stopped_at), p.stopped_by && `, by ${p.stopped_by}`];
  return p.started_at && p.phase === "streaming" && ["began ", ago(p.started_at)];
}

function status(p) {
  const copied = p.chunks && ["snapshot", "planning"].includes(p.phase) ? ` ${percent(p.chunks.done, p.chunks.total)} %` : "";
  return [h("span", { class: phaseLevel(p) }, (PHASES[p.phase] ?? p.phase) + copied), h("small", { class: "line" }, since(p))];
}

function problems(p) {
  if (p.phase === "not_run_yet") return h("small", null, prose(p.hint ?? "Run its DAG to begin"), ".");
  if (!p.troubles.length) return null;
  return h("ul", { class: "problems" },
    p.troubles.map((one) => {
      const place = placeOf(p, one.about), words = prose(sentence(one.text));
      return h("li", { class: one.level }, place ? h("a", { href: place }, words) : words, one.since && [" ", h("small", null, one.code === "open_events" ? ago(one.since) : ["for ", lasting(one.since)])], one.due_at && [" ", h("small", null, "in ", until(one.due_at))], one.error && h("small", { class: "line clip", title: plain(one.error) }, prose(one.error)));
    }),
    p.troubles_more > 0 && h("li", null, h("a", { href: pipelineAddress(p) }, `${number(p.troubles_more)} more`)));
}

const lag = (p) => (p.sampled_at || p.lag_seconds !== null ? [seconds(p.lag_seconds), p.lag_bytes > 0 && h("small", { class: "line" }, bytes(p.lag_bytes)), p.sampled_at && h("small", { class: "line" }, ago(p.sampled_at))] : "–");

function tables(p) {
  if (!p.tables?.total) return "–";
  const states = Object.entries(p.tables.states ?? {}).filter(([, n]) => n > 0 && n < p.tables.total);
  return [number(p.tables.total), states.length > 1 && states.map(([state, n]) => h("small", { class: "line" }, `${number(n)} ${state}`))];
}

const COLUMNS = [
  ["pipeline", name, { text: true }],
  ["state", status],
  ["what is wrong", problems, { text: true }],
  ["behind by", lag, { r: true }],
  ["lag, last hour", (p) => sparkline(p.lag_line, `Lag in the last hour, at most ${seconds(Math.max(...(p.lag_line ?? []).filter((v) => v !== null), 0))}`)],
  ["last change", (p) => (p.last_change_at ? [ago(p.last_change_at), p.changes_per_second !== null && h("small", { class: "line" }, rate(p.changes_per_second))] : "–"), { r: true }],
  ["tables", tables, { r: true }],
];

function summary(pipelines) {
  const bad = pipelines.filter((p) => p.level === "failed").length, look = pipelines.filter((p) => p.level === "warning").length;
  const words = bad ? `${number(bad)} of ${many(pipelines.length, "pipeline")} ${bad === 1 ? "needs" : "need"} action` : look ? `${number(look)} of ${many(pipelines.length, "pipeline")} ${look === 1 ? "needs" : "need"} a look` : `${many(pipelines.length, "pipeline")}, no problems`;
  return h("span", { class: `pill ${bad ? "failed" : look ? "warning" : pipelines.length ? "working" : ""}`, role: "status" }, words);
}

function draw(main) {
  const { pipelines, troubles, unknown } = last;
  const compare = SORTS[order][1];
  const wanted = pipelines.filter((p) => (!level || p.level === level) && `${p.name} ${p.dags.join(" ")} ${PHASES[p.phase]} ${p.source?.label ?? ""} ${p.troubles.map((one) => one.text).join(" ")}`.toLowerCase().includes(filter));
  if (compare) wanted.sort(compare);
  fill(main,
    h("div", { class: "row head" }, h("h1", null, "CDC pipelines"), summary(pipelines), h("span", { class: "grow" }), asOf()),
    pipelines.length > 0 && h("div", { class: "row filters" },
      h("div", { class: "row", role: "group", "aria-label": "Severity" }, Object.entries(LEVELS).map(([one, words]) => h("button", { type: "button", class: `chip ${one}`, "data-level": one, "aria-pressed": String(level === one) }, h("span", { class: `dot ${one}` }), `${words} `, h("b", { class: "num" }, number(pipelines.filter((p) => p.level === one).length))))),
      h("span", { class: "grow" }),
      h("label", { class: "wide" }, h("span", { class: "hidden" }, "Filter"), h("input", { id: "filter", type: "search", placeholder: "Name, DAG, source, problem" })),
      h("label", null, h("span", { class: "hidden" }, "Order"), h("select", { id: "order" }, Object.entries(SORTS).map(([key, [words]]) => h("option", { value: key }, words))))),
    pipelines.length === 0 && h("p", { class: "empty" }, "There is no pipeline that you may see. Add a DAG with ", h("code", null, "cdc_pipeline"), ", or name the state databases of other pipelines in ", h("code", null, "[cdc] bookkeeping"), "."),
    wanted.length > 0 && h("section", { class: "card", "aria-label": "Pipelines" }, table(`Pipelines, ${SORTS[order][0]}`, COLUMNS, wanted, (p) => `${p.book} ${p.name}`)),
    pipelines.length > 0 && wanted.length === 0 && h("p", { class: "empty" }, "No pipeline matches the filter."),
    troubles.length > 0 && card("State databases that cannot be read", {}, table("State databases that cannot be read", [
      ["where", (t) => h("code", null, t.where), { text: true }],
      ["why", (t) => prose(t.message), { text: true }],
      ["what to do", (t) => prose(t.remedy), { text: true }],
      ["DAGs", (t) => t.dags.join(", ")],
    ], troubles, (t) => t.where)),
    unknown.length > 0 && card("DAGs whose pipeline is not known yet", {},
      h("p", null, "The pipeline is a template, or too long for Airflow to store. It becomes known when its task has run. Alternatively, name its state database in ", h("code", null, "[cdc] bookkeeping"), "."),
      h("ul", null, unknown.map((one) => h("li", { "data-key": one.dag }, dagLink(one.dag), ` (${many(one.tasks.length, "task")})`)))));
  main.oninput = (event) => {
    if (event.target.id === "filter") filter = event.target.value.trim().toLowerCase();
    if (event.target.id === "order") order = event.target.value;
    draw(main);
  };
  main.onclick = (event) => {
    const chip = event.target.closest("[data-level]");
    if (!chip) return;
    level = level === chip.dataset.level ? null : chip.dataset.level;
    draw(main);
  };
  const box = document.getElementById("filter"), choice = document.getElementById("order");
  if (box && box !== document.activeElement && box.value.trim().toLowerCase() !== filter) box.value = filter;
  if (choice) choice.value = order;
}

export const overview = {
  every: 3000,
  title: "CDC pipelines",
  async update(main, signal) {
    last = await ask("api/pipelines", signal);
    draw(main);
  },
};
