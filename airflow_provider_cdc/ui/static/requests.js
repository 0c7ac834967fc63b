// What people have asked the stream to do, and what became of it.

import { offer } from "./acts.js";
import { h, prose } from "./dom.js";
import { ago } from "./format.js";

const WORDS = { open: "waiting for the stream", taken: "in progress", done: "done", refused: "refused", withdrawn: "withdrawn" };
const KINDS = { suspend: "Suspend", reread: "Re-snapshot", verify: "Compare", repair: "Repair" };

function what(r) {
  const kind = KINDS[r.kind] ?? r.kind.replaceAll("_", " ");
  return `${kind} ${r.part ? "some keys of " : ""}${r.table || "all tables"}`;
}

export function requestList(p, requests) {
  return h("ol", { class: "events", "aria-label": "Requests" }, requests.map((r) => h("li", { class: `ev ${r.state === "refused" ? "failed" : "info"}`, "data-key": `request ${r.id}` },
    h("div", { class: "row" }, h("b", null, prose(what(r))), h("small", null, `by ${r.by}, `, ago(r.at)), h("span", { class: "grow" }),
      r.state === "open" && p.may_act && offer("withdraw", "Withdraw", { id: r.id }, { "aria-label": `Withdraw: ${what(r)}` })),
    r.condition && h("div", null, h("code", null, r.condition)),
    h("div", null, WORDS[r.state] ?? r.state, r.finished_at && [" ", ago(r.finished_at)], r.outcome && [": ", prose(r.outcome)]))));
}
