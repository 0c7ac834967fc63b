// One pipeline: its phases, the map of chunks, the stream, its tables, control requests and events.

import { chart } from "./chart.js";
import { ChunkMap } from "./chunkmap.js";
import { choose, offer, perform, requests, why } from "./acts.js";
import { ago, airflow, ask, bytes, fill, h, many, number, rate, seconds, table } from "./dom.js";

const BAD = new Set(["table_suspended", "reread_dropped", "reread_given_up", "table_refused"]);
const WARN = new Set(["failover", "reread", "restart", "table_removed", "table_emptied"]);
const MINUTES = [[15, "15 minutes"], [60, "1 hour"], [360, "6 hours"], [1440, "1 day"], [10080, "7 days"]];
const LAG_EVERY = 5000;

const place = (at) => (at ? h("code", null, `${at.file}:${number(at.position)}`) : "–");

function lanes(p) {
  const snap = p.snapshot, stream = p.stream, first = p.runs.at(-1);
  const whole = snap?.state === "done", failed = p.groups?.failed > 0;
  const lane = (name, state, ...lines) => h("li", { class: `lane ${state}` }, h("b", null, name), lines.filter(Boolean).map((line) => h("small", null, line)));
  return h("ol", { class: "lanes", "aria-label": "Phases" },
    lane("Plan", snap ? "done" : "live", snap ? ["written ", ago(snap.planned_at)] : "not yet", snap && `${many(p.chunks, "chunk")} in ${many(p.groups_list.length, "group")}`),
    lane("Snapshot", whole ? "done" : failed ? "bad" : snap?.begun_at ? "live" : "",
      !snap?.begun_at && !whole ? "not yet" : whole ? ["finished ", ago(snap.finished_at)] : ["began ", ago(snap.begun_at)],
      snap?.seconds ? `${seconds(snap.seconds)}, ${number(p.rows)} rows${snap.rows_per_second ? `, ${rate(snap.rows_per_second)}` : ""}` : null,
      p.corrected ? `${many(p.corrected, "key")} corrected by the binlog` : null,
      failed ? `${many(p.groups.failed, "group")} failed` : null,
      p.left !== null && !whole ? `about ${seconds(p.left)} left` : null),
    lane("Handover", first ? "done" : whole ? "live" : "", first ? ["the stream began ", ago(first.started_at)] : whole ? "waiting for the stream" : "not yet"),
    lane("Stream", !stream ? "" : p.level === "failed" && p.phase !== "snapshot" ? "bad" : p.phase === "streaming" ? "live" : "done",
      stream ? [`epoch ${stream.epoch}, ${p.phase.replace("_", " ")}, since `, ago(stream.started_at)] : "not yet",
      stream ? `${many(stream.changes, "change")} in ${many(stream.batches, "batch", "batches")}` : null,
      stream?.at ? place(stream.at) : null));
}

const median = (values) => (values.length ? [...values].sort((a, b) => a - b)[values.length >> 1] : null);

/** Changes per second of all tables, by operation, or the total until the rates are known. */
function operations(p) {
  const known = p.tables_list.filter((t) => t.rates);
  if (!known.length || p.phase !== "streaming") return `${number(p.stream.changes)} in this run`;
  return OPERATIONS.map((name) => `${name} ${rate(known.reduce((sum, t) => sum + t.rates[name], 0))}`).join(", ");
}

function tiles(p, lag) {
  const newest = lag?.points.filter((point) => point[4] !== null).at(-1);
  const tile = (head, value, foot) => h("div", { class: "card tile" }, h("small", null, head), h("b", { class: "num" }, value), h("small", null, foot ?? " "));
  const found = [];
  if (p.snapshot && p.snapshot.state !== "done") found.push(
    tile("Chunks", `${number(p.done)} of ${number(p.chunks)}`, `${p.chunks ? Math.floor((100 * p.done) / p.chunks) : 0} % read`),
    tile("Rows", number(p.rows), p.rows_per_second ? `${rate(p.rows_per_second)} now` : "read so far"));
  if (p.stream) found.push(
    tile("Lag, p95", seconds(p.phase === "streaming" ? p.lag_seconds : null), newest ? `last with changes: ${seconds(newest[4])}` : "from commit to commit"),
    tile("Changes", rate(p.changes_per_second), operations(p)),
    tile("Merge", seconds(median(p.batches.map((b) => b.seconds))), `per batch; ${many(p.stream.batches, "batch", "batches")} in this run`),
    tile("Lag, bytes", bytes(p.lag_bytes), p.lag_unknown ?? "of binlog"),
    tile("Binlog read", bytes(p.stream.bytes), "in this run"));
  if (p.sampled_at) found.push(tile("Source keeps needed binlogs", p.purge_hours === null ? "forever" : seconds(p.purge_hours * 3600), ["sampled ", ago(p.sampled_at)]));
  return found.length ? h("div", { class: "tiles" }, found) : null;
}

function events(p) {
  if (!p.events.length) return h("p", { class: "dim" }, "No events yet.");
  return h("ul", { class: "events" }, p.events.map((e) => h("li", { class: `ev ${BAD.has(e.kind) ? "bad" : WARN.has(e.kind) ? "warn" : ""}`, "data-key": e.id },
    h("b", null, e.kind.replaceAll("_", " ")), " ", h("small", null, ago(e.at)), h("div", null, e.detail),
    e.remedy && h("div", { class: "dim" }, e.remedy), e.by && h("small", null, `by ${e.by}`),
    !e.acknowledged_by && p.may_act && h("div", null, offer("acknowledge", "Acknowledge", { id: e.id }, { "aria-label": `Acknowledge: ${e.detail}` })),
    e.acknowledged_by && h("small", null, `acknowledged by ${e.acknowledged_by} `, ago(e.acknowledged_at)))));
}

/** Definitions of a table, newest first. */
function definitions(t) {
  if (!t.definitions?.length) return null;
  const lines = [...t.definitions].reverse().map((d) => h("li", null,
    d.since ? ["since ", h("code", null, d.since)] : "as planned", ": ",
    typeof d.changed === "string" ? h("code", null, d.changed) : Array.isArray(d.changed) && d.changed.length ? d.changed.map((c) => [h("code", null, String(c)), " "]) : many(Object.keys(d.columns ?? {}).length, "column"),
    d.key?.length ? ` key ${d.key.join(", ")}` : " no key"));
  return h("details", null, h("summary", null, many(lines.length, "definition")), h("ul", null, lines));
}

const state = (t) => [h("span", { class: `dot ${t.state}` }), t.state === "snapshot" ? `snapshot, ${number(t.done)} of ${number(t.chunks)} chunks` : t.state,
  t.since && h("small", null, " since ", ago(t.since)), t.reason && h("div", { class: "error" }, t.reason), t.remedy && h("div", null, t.remedy)];

const OPERATIONS = ["inserts", "updates", "deletes"];

/** Changes of a table that the stream has applied, in total and per second, by operation. */
const changes = (t) => t.inserts === undefined ? "–" : [number(t.inserts + t.updates + t.deletes),
  OPERATIONS.map((name) => t[name] > 0 && h("small", { class: "line" }, `${number(t[name])} ${name}${t.rates ? `, ${rate(t.rates[name])}` : ""}`))];

/** Number of compactions of the copy, and the last one. */
const compacted = (t) => t.copy?.compactions > 0 && h("small", { class: "line" }, `compacted ${many(t.copy.compactions, "time")}`,
  t.compacted_at && [", last ", ago(t.compacted_at), ` in ${seconds(t.compaction_seconds)}`]);

/** Result of the last comparison, and why a later one was not possible. */
const verified = (t) => [
  t.verified_at ? [t.last_verified?.equal === false ? h("span", { class: "failed" }, "different ") : "equal ", ago(t.verified_at)] : "never",
  t.last_verified?.not_comparable && h("small", { class: "line" }, "not comparable ", ago(t.last_verified.not_comparable.at), `: ${t.last_verified.not_comparable.reason}`)];

const TABLES = [
  ["table", (t) => [h("b", null, `${t.database}.${t.table}`), definitions(t)], { text: true }],
  ["state", state, { text: true }],
  ["rows read", (t) => number(t.rows), { r: true }],
  ["corrected", (t) => number(t.corrected), { r: true }],
  ["changes", changes, { r: true }],
  ["files", (t) => [number(t.copy?.files), compacted(t)], { r: true }],
  ["size", (t) => bytes(t.copy?.bytes ?? null), { r: true }],
  ["dead rows", (t) => (t.copy?.rows ? `${((100 * (t.copy.dead_rows ?? 0)) / t.copy.rows).toFixed(1)} %` : "–"), { r: true }],
  ["verified", verified, { text: true }],
];
const GROUPS = [
  ["group", (g) => String(g.no)],
  ["state", (g) => [h("span", { class: `dot ${["done", "taken_over"].includes(g.state) ? "working" : g.state === "running" ? "snapshot" : g.state}` }), g.state.replace("_", " ")]],
  ["attempt", (g) => String(g.attempt), { r: true }],
  ["rows", (g) => number(g.rows), { r: true }],
  ["tables", (g) => g.tables.join(", "), { text: true }],
  ["read by", (g) => g.holder ?? "", { text: true }],
];
const TABLE_ACTS = ["actions", (t) => t.state !== "snapshot" && h("button", { type: "button", "data-table": `${t.database}.${t.table}`, "data-state": t.state, "aria-label": `Actions: ${t.database}.${t.table}` }, "Actions")];
const GROUP_ACTS = ["actions", (g) => g.retry && offer("retry", `Retry group ${g.no}`, { group: g.no }, { short: "Retry" })];
const BATCHES = [
  ["batch", (b) => `${b.epoch}.${b.batch}`],
  ["when", (b) => ago(b.at)],
  ["changes", (b) => number(b.changes), { r: true }],
  ["binlog", (b) => bytes(b.bytes), { r: true }],
  ["took", (b) => seconds(b.seconds), { r: true }],
  ["lag p50", (b) => seconds(b.lag_p50), { r: true }],
  ["lag p95", (b) => seconds(b.lag_p95), { r: true }],
  ["up to", (b) => place(b.to), { text: true }],
];
const RUNS = [
  ["epoch", (r) => String(r.epoch)],
  ["state", (r) => r.state],
  ["host", (r) => r.host],
  ["began", (r) => ago(r.started_at)],
  ["last heartbeat", (r) => ago(r.heartbeat_at)],
  ["changes", (r) => number(r.changes), { r: true }],
  ["error", (r) => r.error && h("div", { class: "error" }, r.error), { text: true }],
];

/** Sums over tables, the recent rate, and the remaining time at that rate. */
function sums(p, seen) {
  for (const name of ["chunks", "done", "rows", "corrected"]) p[name] = p.tables_list.reduce((sum, t) => sum + t[name], 0);
  const at = performance.now() / 1000;
  seen.push([at, p.rows, p.done]);
  while (seen.length > 2 && at - seen[0][0] > 30) seen.shift();
  const passed = at - seen[0][0], done = p.done - seen[0][2];
  p.rows_per_second = passed > 3 ? (p.rows - seen[0][1]) / passed : null;
  p.left = passed > 3 && done > 0 ? ((p.chunks - p.done) * passed) / done : null;
}

export function pipeline(book, name) {
  const base = `api/pipelines/${book}/${encodeURIComponent(name)}`;
  const map = new ChunkMap(base), seen = [];
  let minutes = 60, lag = null, lagAt = -Infinity, last = null, asked = null, asking = false;

  async function click(main, pressed) {
    if (!pressed || asking) return; // a second click, while the first one is being handled
    asking = true;
    try {
      const { act: name, label, about, table: chosen, state } = pressed.dataset;
      const [what, words, which] = chosen ? ((await choose(chosen, state)) ?? []) : [name, label, JSON.parse(about)];
      const done = what && (await perform(base, what, words, which));
      asking = false;
      if (!done) return;
      last = await ask(base);
      sums(last, seen);
      draw(main);
      fill(document.getElementById("done"), `${words}: done.`);
    } catch (error) {
      fill(document.getElementById("banner"), h("b", null, error.message), error.remedy ? `. ${error.remedy}.` : ".");
    } finally {
      asking = false;
    }
  }

  function draw(main) {
    const p = last;
    fill(main,
      h("nav", { "aria-label": "Back" }, h("a", { href: "#/" }, "All pipelines")),
      h("div", { class: "top" }, h("h1", null, p.name), h("span", { class: `pill ${p.level}`, role: "status" }, p.phase.replace("_", " ")), p.says && h("span", { class: `pill ${p.level}` }, p.says),
        p.stream?.paused_by && h("span", { class: "pill warning" }, `paused by ${p.stream.paused_by}`),
        h("span", { class: "dim" }, `server ${p.server}, state database ${p.where}`), h("span", { class: "grow" }),
        p.dags.map((dag) => airflow(`dags/${encodeURIComponent(dag)}`, `DAG ${dag}`))),
      p.offers.length > 0 && h("div", { class: "top", role: "group", "aria-label": "Actions" }, p.offers.map((o) =>
        offer(o.act, o.label, {}, { "data-key": o.act, "aria-disabled": o.why_not ? "true" : null, title: o.why_not }))),
      p.error && h("section", { class: "card", "aria-label": "Error" }, h("h2", null, "Why it stopped"), h("p", { class: "error" }, p.error)),
      lanes(p), tiles(p, lag),
      h("div", { class: "cols" },
        h("div", null, map.node.isConnected ? h("section", { "data-own": true }) : map.node,
          h("section", { class: "card" }, h("h2", null, `Tables: ${number(p.tables_list.length)}`), h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Tables" }, table("Tables", p.may_act ? [...TABLES, TABLE_ACTS] : TABLES, p.tables_list, (t) => `${t.database}.${t.table}`))),
          h("section", { class: "card" }, h("h2", null, "Chunk groups"), h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Chunk groups" }, table("Chunk groups", p.groups_list.some((g) => g.retry) ? [...GROUPS, GROUP_ACTS] : GROUPS, p.groups_list, (g) => `group ${g.no}`))),
          p.batches.length > 0 && h("section", { class: "card", "data-key": "batches" }, h("h2", null, "Newest batches"), h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Newest batches" }, table("Newest batches", BATCHES, p.batches, (b) => `${b.epoch}.${b.batch}`))),
          p.runs.length > 0 && h("section", { class: "card", "data-key": "runs" }, h("h2", null, "Stream epochs"), h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Stream epochs" }, table("Stream epochs", RUNS, p.runs, (r) => `epoch ${r.epoch}`)))),
        h("div", null,
          h("section", { class: "card" }, h("div", { class: "top" }, h("h2", null, "Lag and changes"), h("span", { class: "grow" }), h("select", { id: "minutes", "aria-label": "Time shown" }, MINUTES.map(([n, words]) => h("option", { value: n }, words)))),
            lag ? [h("h3", { class: "hidden" }, "Lag"), chart("Lag in seconds", lag, [{ name: "p50", column: 3, cls: "p50" }, { name: "p95", column: 4, cls: "p95" }], seconds),
              h("h3", { class: "hidden" }, "Changes"), chart("Changes per second", lag, [{ name: "changes", column: 1, cls: "p50" }], rate),
              h("h3", { class: "hidden" }, "Merges"), chart("Seconds to merge a batch", lag, [{ name: "median", column: 5, cls: "p50" }, { name: "longest", column: 6, cls: "p95" }], seconds)] : h("p", { class: "dim" }, "Loading …")),
          p.stream && h("section", { class: "card", "data-key": "stream" }, h("h2", null, "Stream"), h("p", null, "Epoch ", p.stream.epoch, " on ", p.stream.host, ", last heartbeat ", ago(p.stream.heartbeat_at), "."),
            p.stream.supervisor && h("p", null, "Supervised by ", p.stream.supervisor, ", ", ago(p.stream.supervised_at), "."),
            p.stream.at && [h("p", null, "Read up to ", place(p.stream.at)), p.stream.at.gtid_set && h("p", null, "GTIDs ", h("code", null, p.stream.at.gtid_set))],
            p.stream.log && h("p", null, "Driver log: ", h("code", null, p.stream.log))),
          p.requests.length > 0 && h("section", { class: "card", "data-key": "requests" }, h("h2", null, "Control requests"), h("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Control requests" }, requests(p, ago))),
          h("section", { class: "card" }, h("h2", null, "Events"), h("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Events" }, events(p))),
          p.tables_list.length > 0 && h("section", { class: "card", "aria-label": "Explain a row" }, h("h2", null, "Explain a row"), why(p, asked)))));
    main.onclick = (event) => click(main, event.target.closest?.("[data-act], [data-table]"));
    const which = document.getElementById("why");
    if (which) which.onchange = () => { asked = which.value; draw(main); };
    const choice = document.getElementById("minutes");
    choice.value = String(minutes);
    choice.onchange = () => { minutes = Number(choice.value); lagAt = -Infinity; };
  }

  return {
    every: 2000,
    title: name,
    async update(main, signal) {
      const [found] = await Promise.all([
        ask(base, signal),
        performance.now() - lagAt > LAG_EVERY && ask(`${base}/lag?minutes=${minutes}`, signal).then((got) => { lag = got; lagAt = performance.now(); }),
      ]);
      sums(found, seen);
      last = found;
      draw(main);
      await map.update(found, signal);
    },
  };
}
