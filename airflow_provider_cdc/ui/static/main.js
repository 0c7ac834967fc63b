// Selects the view, keeps it up to date, and applies the theme.

import { fill, h, isFramed, named, outside, prose } from "./dom.js";
import { followClock } from "./format.js";
import { pipelineAddress } from "./links.js";
import { overview } from "./overview.js";
import { pipeline } from "./pipeline.js";
import { ask } from "./server.js";
import { PHASES } from "./troubles.js";

//: A frame that is narrower offers the page without Airflow around it.
const NARROW = 500;
//: The page asks again after at least so many times what the last answer took, and at most after so many ms.
const PATIENCE = 4, LONGEST_WAIT = 30_000;
const main = document.getElementById("main"), banner = document.getElementById("banner"), frame = document.getElementById("frame");
let current = null, shown = null;

/** Airflow's current theme if the page is in its frame, else the theme that Airflow has stored, or the system's. */
function theme() {
  let found = null;
  try {
    const outer = isFramed() ? window.parent.document.documentElement : null;
    if (outer) found = outer.classList.contains("dark") ? "dark" : outer.classList.contains("light") ? "light" : null;
    found ??= { dark: "dark", light: "light" }[localStorage.getItem("theme")] ?? null;
    if (outer && !theme.watching) {
      theme.watching = new MutationObserver(theme);
      theme.watching.observe(outer, { attributes: true, attributeFilter: ["class"] });
    }
  } catch { /* a frame of another host: the system's setting */ }
  if (found) document.documentElement.dataset.theme = found;
  else delete document.documentElement.dataset.theme;
}

/** Wait until the tab is seen. */
const untilVisible = (signal) => new Promise((done) => {
  if (!document.hidden || signal.aborted) return done();
  const look = () => {
    if (document.hidden && !signal.aborted) return;
    document.removeEventListener("visibilitychange", look);
    done();
  };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", look);
});

async function show(view) {
  current?.abort();
  const mine = (current = new AbortController());
  document.title = view.title;
  main.onclick = main.onchange = main.oninput = null;
  main.replaceChildren(h("p", { class: "empty", role: "status" }, "Loading …"));
  let wait = 0, failures = 0, again = false, release = null;
  view.wake = () => { again = true; release?.(); };
  while (!mine.signal.aborted) {
    await untilVisible(mine.signal);
    if (mine.signal.aborted) return;
    const began = performance.now();
    again = false;
    try {
      await view.update(main, mine.signal);
      fill(banner);
      failures = 0;
      wait = Math.min(LONGEST_WAIT, Math.max(view.every, PATIENCE * (performance.now() - began)));
    } catch (error) {
      if (mine.signal.aborted) return;
      fill(banner, h("b", null, error.message), error.remedy ? prose(`. ${error.remedy}.`) : ".");
      if (!main.querySelector("h1")) fill(main, h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/" }, "All pipelines")), h("h1", null, view.title), h("p", { class: "empty" }, "Nothing can be shown at the moment."));
      if (error.status === 401) return;
      wait = Math.min(15000, view.every * 2 ** failures++);
    }
    if (again) continue; // asked for while this answer was on its way
    await new Promise((done) => {
      const timer = setTimeout(done, wait);
      release = () => { clearTimeout(timer); done(); };
    });
  }
}

/** The tab of a DAG, a run or a task, which leads to its pipelines. */
function tab(query) {
  return {
    every: 5000,
    title: query.get("dag_id"),
    async update(node, signal) {
      const found = await ask(`api/where?${query}`, signal);
      const [only] = found.pipelines;
      if (found.pipelines.length === 1 && only.book) {
        location.replace(pipelineAddress(only));
        return;
      }
      fill(node, h("h1", null, "CDC pipelines of this DAG"),
        found.pipelines.length > 0 && h("ul", null, found.pipelines.map((p) => h("li", null, p.book ? h("a", { href: pipelineAddress(p) }, named(p.name)) : h("b", null, named(p.name)), `: ${PHASES[p.phase] ?? p.phase}. `, !p.book && "It appears here as soon as its snapshot is planned. ", p.hint && prose(`${p.hint}.`)))),
        found.pipelines.length === 0 && h("p", { class: "empty" }, found.tasks ? "Its pipeline is not known before it has run." : "This does not belong to a CDC pipeline."),
        h("p", null, h("a", { href: "#/" }, "All pipelines")));
    },
  };
}

function route() {
  const [, kind, book, name, ...rest] = location.hash.split("/");
  const query = new URLSearchParams(location.search);
  const key = kind === "p" && book && name ? `${book}/${name}` : query.get("dag_id") && location.hash === "" ? "tab" : "all";
  offerFullPage();
  if (key === shown?.key && shown.view.move) { // another part of the same thing
    shown.view.move(rest, main);
    return;
  }
  const view = key === "tab" ? tab(query) : key === "all" ? overview : pipeline(book, decodeURIComponent(name), rest);
  shown = { key, view };
  show(view);
}

/** Width of the part of the frame that is inside the window. On a phone, Airflow makes the frame wider than that. */
function seenWidth() {
  try {
    const box = window.frameElement.getBoundingClientRect();
    return Math.min(innerWidth, Math.min(box.right, window.parent.innerWidth) - Math.max(box.left, 0));
  } catch { // a frame of another host
    return innerWidth;
  }
}

/** Airflow's split view leaves little room on a phone: the page is also there without Airflow around it. */
function offerFullPage() {
  const narrow = isFramed() && seenWidth() < NARROW;
  fill(frame, narrow ? outside(`./${location.search}${location.hash}`, "Open the full page") : null);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address's hash selects the view
  main.focus();
});
theme();
followClock();
addEventListener("storage", theme);
addEventListener("hashchange", route);
addEventListener("resize", offerFullPage);
route();
