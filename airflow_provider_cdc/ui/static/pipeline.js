// One pipeline: what is wrong, how fresh the copy is, and the parts of the view: tables, timeline, snapshot, stream.

import { offers, perform } from "./acts.js";
import { Chart } from "./chart.js";
import { airflow, fill, h, inPlace, isFramed, named, prose } from "./dom.js";
import { ago, asOf, bytes, clock, isPast, lasting, many, number, percent, rate, seconds, until } from "./format.js";
import { dagLink, pipelineAddress, sparkLink, taskLink } from "./links.js";
import { OneTable } from "./one_table.js";
import { ask } from "./server.js";
import { phases, Snapshot } from "./snapshot.js";
import { Stream } from "./stream.js";
import { Tables } from "./tables.js";
import { Timeline } from "./timeline.js";
import { actsOfTroubles, PHASES, phasePill, problemPill, troublePanel } from "./troubles.js";

const PARTS = { tables: "Tables", timeline: "Timeline", snapshot: "Snapshot", stream: "Stream" };
const MINUTES = [[5, "5 minutes"], [15, "15 minutes"], [60, "1 hour"], [360, "6 hours"], [1440, "1 day"], [10080, "7 days"]];
const LAG_EVERY = 5000, DONE_SHOWN = 8000;
const COPYING = new Set(["planning", "snapshot", "handover"]);

/** How fresh the copy is, in one sentence and one number. */
function headline(p) {
  const snap = p.snapshot, number_ = (words, value, ...foot) => [h("small", null, words), h("b", { class: "huge num" }, value), h("small", null, foot)];
  if (p.phase === "streaming") return number_("The copy is behind the source by", seconds(p.lag_seconds), p.sampled_at ? ["measured ", ago(p.sampled_at)] : "not measured yet");
  if (COPYING.has(p.phase)) return number_(p.phase === "handover" ? "The snapshot is complete; the stream has not begun" : "Read so far", snap ? `${percent(snap.done, snap.chunks)} %` : "0 %", snap?.counted_at ? ["counted ", ago(snap.counted_at)] : null);
  const at = p.stream?.progress_at ?? p.last_change_at ?? p.stopped_at;
  return number_("The copy has not followed the source for", at ? lasting(at) : "–", p.stopped_by ? `ended by ${p.stopped_by}` : p.paused_by ? `paused by ${p.paused_by}` : null);
}

function numbers(p, speed) {
  const snap = p.snapshot, fact = (name, value, age) => h("div", null, h("dt", null, name), h("dd", null, h("span", { class: "num" }, value), age && h("small", null, " ", age)));
  const isLive = p.phase === "streaming";
  return h("dl", { class: "facts" },
    COPYING.has(p.phase) && snap && [
      fact("Chunks", `${number(snap.done)} of ${number(snap.chunks)}`, snap.reading > 0 && `${number(snap.reading)} being read`), fact("Rows", number(snap.rows), snap.rows_per_second && `${rate(snap.rows_per_second)} on average`),
      speed.left !== null && snap.state !== "done" && fact("Time left", `about ${seconds(speed.left)}`)],
    p.last_change_at && fact("Last change in the copy", ago(p.last_change_at)),
    isLive && fact("Changes", rate(p.changes_per_second)),
    p.lag_bytes !== null && fact("Binlog not read yet", p.lag_unknown ? "unknown" : bytes(p.lag_bytes), p.sampled_at && ago(p.sampled_at)),
    p.purges_at ? fact("The source keeps what is needed for", until(p.purges_at), [isPast(p.purges_at) ? "since " : "until ", clock(p.purges_at)]) : p.sampled_at && p.stream && !p.lag_unknown && fact("The source keeps what is needed", "with no known limit"));
}

export function pipeline(book, name, rest) {
  const base = `api/pipelines/${book}/${encodeURIComponent(name)}`, seen = [];
  const lagChart = new Chart("Lag", [{ name: "median", column: 3, cls: "p50" }, { name: "95 %", column: 4, cls: "p95" }], seconds);
  let minutes = 60, lag = null, lagAt = -Infinity, asking = false, part = null, partName = null, place = null, root = null;
  const view = { every: 2000, title: name, update, move };
  const context = { base, p: null, wake: () => view.wake?.(), redraw: () => draw() };
  const parts = { tables: new Tables(context), timeline: new Timeline(context), snapshot: new Snapshot(context), stream: new Stream(context), table: new OneTable(context) };
  let wanted = rest;

  /** Choose the part that the address names, or the one that matters now. */
  function choose() {
    const named = wanted[0] in parts ? wanted[0] : null;
    partName = named ?? (COPYING.has(context.p?.phase) && context.p?.snapshot?.state !== "done" ? "snapshot" : "tables");
    part = parts[partName];
    if (place !== wanted) part.open?.(named ? wanted.slice(1) : []);
    place = wanted;
  }

  function move(next, main) {
    wanted = next;
    root = main;
    if (!context.p) return;
    choose();
    draw();
    context.wake();
    const parts = document.getElementById("parts"), top = parts?.getBoundingClientRect().top ?? 0;
    if (!parts) window.scrollTo({ top: 0 });
    else if (top < 0 || top > innerHeight / 2) parts.scrollIntoView(); // what was chosen is seen
  }

  /** Remaining time at the rate of the last minute. */
  function speed(p) {
    const snap = p.snapshot, at = performance.now() / 1000;
    if (!snap) return { left: null };
    if (seen.at(-1)?.[1] !== snap.done || !seen.length) seen.push([at, snap.done]);
    while (seen.length > 2 && at - seen[0][0] > 120) seen.shift();
    const passed = at - seen[0][0], done = snap.done - seen[0][1];
    return { left: passed > 3 && done > 0 ? ((snap.chunks - snap.done) * passed) / done : null };
  }

  async function press(pressed) {
    const done = document.getElementById("done");
    const say = (words) => {
      fill(done, prose(words));
      done.classList.add("shown");
      clearTimeout(say.timer);
      say.timer = setTimeout(() => done.classList.remove("shown"), DONE_SHOWN);
    };
    const { act: what, label, about, why } = pressed.dataset;
    if (pressed.getAttribute("aria-disabled") === "true") return say(`Not possible now: ${why}.`);
    if (asking) return undefined; // a second click, while the first one is being handled
    asking = true;
    try {
      if (await perform(base, what, label, JSON.parse(about))) {
        say(`${label}: done.`);
        context.wake();
      }
    } catch (error) {
      fill(document.getElementById("banner"), h("b", null, error.message), error.remedy ? `. ${error.remedy}.` : ".");
    } finally {
      asking = false;
    }
    return undefined;
  }

  function links(p) {
    const s = p.stream, task = s?.supervisor?.dag_id && taskLink(s.supervisor);
    return h("p", { class: "sub" },
      [p.source?.label && h("span", { class: "source" }, prose(p.source.label)), ...p.dags.map(dagLink), task, s && sparkLink(s.ui), h("span", null, "state database: ", prose(p.where))].filter(Boolean).map((one) => h("span", { class: "bit" }, one)));
  }

  const crumbs = (...more) => h("nav", { class: "crumbs", "aria-label": "Path" }, !isFramed() && [airflow("", "Airflow"), " / "], h("a", { href: "#/" }, "All pipelines"), more);

  /** One table: of its pipeline, only what one needs to know there. */
  function tablePage(p, here) {
    return [
      crumbs(" / ", h("a", { href: here }, named(p.name)), " / ", h("a", { href: `${here}/tables` }, "Tables")),
      h("div", { class: "row head" }, h("h1", null, named(part.name)), h("span", { class: "grow" }), asOf()),
      h("p", { class: "sub" }, h("span", null, "Pipeline ", named(p.name), ": ", PHASES[p.phase], p.phase === "streaming" && [", behind by ", seconds(p.lag_seconds), " (measured ", ago(p.sampled_at), ")"]), problemPill(p)),
      partView(p)];
  }

  const partView = (p) => h("div", { class: "part", "data-key": `part ${partName} ${partName === "table" ? part.name : ""}` }, part.draw(p));

  function pipelinePage(p, here) {
    const beside = actsOfTroubles(p), counts = { tables: p.tables?.total, timeline: null, snapshot: null, stream: null };
    return [
      crumbs(),
      h("div", { class: "row head" }, h("h1", null, named(p.name)), phasePill(p), problemPill(p), h("span", { class: "grow" }), asOf()),
      links(p),
      p.offers?.length > 0 && h("div", { class: "row acts", role: "group", "aria-label": "Actions" }, offers(p.offers.filter((one) => !beside.has(one.act)))),
      troublePanel(p),
      h("section", { class: "card fresh", "aria-label": "Freshness", "data-key": "fresh" },
        h("div", { class: "answer" }, h("div", { class: "headline" }, headline(p)), COPYING.has(p.phase) && p.snapshot && h("progress", { max: p.snapshot.chunks || 1, value: p.snapshot.done, "aria-label": "Chunks read" }), numbers(p, speed(p))),
        p.stream && h("div", { class: "lag" },
          h("div", { class: "row" }, h("h2", null, "Lag"), h("span", { class: "grow" }), h("select", { id: "minutes", "aria-label": "Time shown" }, MINUTES.map(([n, words]) => h("option", { value: n }, words)))),
          inPlace(lagChart.node))),
      phases(p),
      h("nav", { class: "parts", id: "parts", "aria-label": "Parts" }, Object.entries(PARTS).map(([key, words]) => h("a", { href: `${here}/${key}`, "aria-current": key === partName ? "page" : null }, words, counts[key] !== null && counts[key] !== undefined && h("span", { class: "count num" }, number(counts[key]))))),
      partView(p)];
  }

  function draw() {
    const p = context.p, here = pipelineAddress(p);
    fill(root, h("div", { "data-key": partName === "table" ? `table ${part.name}` : "pipeline" }, partName === "table" ? tablePage(p, here) : pipelinePage(p, here)));
    if (lag && partName !== "table") {
      lagChart.update(lag);
      if (partName === "stream") part.chart(lag);
    }
    part.drawn?.();
    const choice = document.getElementById("minutes");
    if (choice) choice.value = String(minutes);
    root.onclick = (event) => {
      const pressed = event.target.closest("[data-act]");
      if (pressed) press(pressed);
      else part.click?.(event.target);
    };
    root.oninput = (event) => {
      if (event.target.id !== "minutes") return part.change?.(event.target);
      minutes = Number(event.target.value);
      lagAt = -Infinity;
      return context.wake();
    };
  }

  async function update(main, signal) {
    root = main;
    const isFirst = !context.p;
    if (isFirst) context.p = await ask(base, signal);
    choose();
    const mine = part;
    const [found] = await Promise.all([
      ask(base, signal),
      part.load?.(signal),
      context.p.stream && performance.now() - lagAt > LAG_EVERY && ask(`${base}/lag?minutes=${minutes}`, signal).then((got) => { lag = got; lagAt = performance.now(); }),
    ]);
    if (signal.aborted) return;
    context.p = found;
    if (mine !== part) return context.wake(); // the address has changed meanwhile
    draw();
    await part.late?.(found, signal);
    return undefined;
  }

  return view;
}
