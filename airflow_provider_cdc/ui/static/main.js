// Selects the view, keeps it up to date, and applies the theme.

import { ask, fill, h } from "./dom.js";
import { overview } from "./overview.js";
import { pipeline } from "./pipeline.js";

const main = document.getElementById("main"), banner = document.getElementById("banner");
let current = null;

/** Airflow's current theme if the page is in its frame, else the theme that Airflow has stored, or the system's. */
function theme() {
  let found = null;
  try {
    const outer = window.parent === window ? null : window.parent.document.documentElement;
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

async function show(view) {
  current?.abort();
  const mine = (current = new AbortController());
  document.title = view.title;
  main.replaceChildren(h("p", { class: "empty", role: "status" }, "Loading …"));
  let wait = 0;
  while (!mine.signal.aborted) {
    try {
      if (!document.hidden) {
        await view.update(main, mine.signal);
        fill(banner);
      }
      wait = view.every;
    } catch (error) {
      if (mine.signal.aborted) return;
      fill(banner, h("b", null, error.message), error.remedy ? `. ${error.remedy}.` : ".");
      if (!main.querySelector("h1")) fill(main, h("h1", null, view.title), h("p", { class: "empty" }, "Nothing can be shown at the moment."));
      if (error.status === 401) return;
      wait = Math.min(15000, Math.max(view.every, wait * 2));
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

/** The tab of a DAG, a run or a task, which leads to its pipelines. */
function tab(query) {
  const dag = query.get("dag_id");
  return {
    every: 5000,
    title: dag,
    async update(node, signal) {
      const found = await ask(`api/where?${query}`, signal);
      if (found.pipelines.length === 1) {
        const only = found.pipelines[0];
        location.replace(`#/p/${only.book}/${encodeURIComponent(only.name)}`);
        return;
      }
      fill(node, h("h1", null, "CDC pipelines of this DAG"),
        found.pipelines.length > 0 && h("ul", null, found.pipelines.map((p) => h("li", null, h("a", { href: `#/p/${p.book}/${encodeURIComponent(p.name)}` }, p.name), ` ${p.phase} ${p.says}`))),
        found.pipelines.length === 0 && h("p", { class: "empty" }, found.tasks ? "Its pipeline has not run yet. It appears here as soon as its snapshot is planned." : "This does not belong to a CDC pipeline."),
        h("p", null, h("a", { href: "#/" }, "All pipelines")));
    },
  };
}

function route() {
  const [, kind, book, name] = location.hash.split("/");
  const query = new URLSearchParams(location.search);
  if (kind === "p" && book && name) show(pipeline(book, decodeURIComponent(name)));
  else if (query.get("dag_id") && location.hash === "") show(tab(query));
  else show(overview);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address's hash selects the view
  main.focus();
});
theme();
addEventListener("storage", theme);
addEventListener("hashchange", route);
route();
