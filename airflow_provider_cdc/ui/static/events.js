// Events: the timeline of a pipeline or of one table.

import { h, named, prose } from "./dom.js";
import { ago, clock } from "./format.js";
import { tableAddress, taskLink } from "./links.js";
import { acknowledge } from "./troubles.js";

/** Events, newest first. */
export function eventList(p, events, { withTable = true } = {}) {
  if (!events.length) return h("p", { class: "dim" }, "No events.");
  return h("ol", { class: "events" }, events.map((e) => h("li", { class: `ev ${e.level}`, "data-key": `event ${e.id}` },
    h("div", { class: "row" },
      h("b", null, e.label), withTable && e.table && h("a", { href: tableAddress(p, e.table) }, named(e.table)),
      h("small", null, ago(e.at)), h("small", { class: "dim" }, clock(e.at)),
      h("span", { class: "grow" }),
      e.needs_attention && !e.acknowledged_by && p.may_act && acknowledge(e)),
    h("div", null, prose(e.text)),
    e.remedy && h("div", { class: "remedy" }, h("b", null, "What to do: "), prose(e.remedy)),
    (e.by || e.task) && h("small", { class: "line" }, e.by && `by ${e.by} `, taskLink(e.task)),
    e.acknowledged_by && h("small", { class: "line" }, `acknowledged by ${e.acknowledged_by} `, ago(e.acknowledged_at)))));
}
