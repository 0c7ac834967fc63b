// What is wrong, since when, and what to do about it.

import { offer } from "./acts.js";
import { airflow, h, named, prose } from "./dom.js";
import { ago, lasting, many, until } from "./format.js";
import { placeOf, tableAddress } from "./links.js";

export const PHASES = {
  not_run_yet: "not run yet", planning: "planning", snapshot: "snapshot", handover: "snapshot complete", streaming: "streaming",
  paused: "paused", stopping: "stopping", stopped: "stopped", caught_up: "caught up", failed: "failed", lost: "no sign of life",
};
export const LEVELS = { failed: "Need action", warning: "Need a look", working: "At work", idle: "At rest" };
//: Label of the action on a suspended table.
export const RESUME = "Re-snapshot and resume";
//: Actions whose buttons stand beside a trouble of a table or a group.
const LABELS = { reread: "Re-snapshot", reread_keys: "Re-snapshot some keys", suspend: "Suspend", retry: "Retry", start: "Start the stream", resume: "Resume the stream", verify: "Verify now", repair: "Repair" };

/** The state of a pipeline in one word, as a pill. */
export const phasePill = (p) => h("span", { class: `pill ${phaseLevel(p)}`, role: "status" }, PHASES[p.phase] ?? p.phase);

/** Severity of the phase itself: a stream that goes on is at work, whatever becomes of one of its tables. */
export const phaseLevel = (p) => ({ failed: "failed", lost: "failed", streaming: "working", snapshot: "working", planning: "working" })[p.phase] ?? (p.level === "failed" ? "warning" : p.level);

/** How many problems a pipeline has, as a pill: as many as are listed, without those that need nobody. */
export function problemPill(p) {
  const { troubles, events } = problemsOf(p), unlisted = (p.events?.attention ?? 0) - (p.events?.newest?.length ?? 0);
  const n = troubles.filter((one) => one.level !== "info").length + (p.troubles_more ?? 0) + events.length + unlisted;
  return n > 0 && h("span", { class: `pill ${p.level}` }, many(n, "problem"));
}

const isAboutOne = (trouble) => trouble.about?.table || (trouble.about?.group ?? null) !== null;

function label(trouble, name, offers) {
  if (trouble.about?.table && name === "reread" && trouble.code?.startsWith("table_suspended")) return RESUME;
  return (!isAboutOne(trouble) && offers?.find((one) => one.act === name)?.label) || (LABELS[name] ?? name);
}

/** Why the actions beside a trouble are impossible now. */
function hindrances(p, trouble) {
  if (!p.may_act || isAboutOne(trouble)) return [];
  const known = (p.offers ?? []).filter((one) => trouble.acts?.includes(one.act) && one.why_not);
  return known.map((one) => h("p", { class: "remedy" }, h("b", null, `${one.label} is not possible now: `), prose(one.why_not)));
}

function buttons(p, trouble) {
  if (!p.may_act) return [];
  const isOne = isAboutOne(trouble);
  return (trouble.acts ?? []).filter((name) => isOne || p.offers?.some((one) => one.act === name)).map((name) => {
    const about = { ...(trouble.about?.table && { table: trouble.about.table }), ...(trouble.about?.group !== undefined && trouble.about.group !== null && { group: trouble.about.group }) };
    const known = p.offers?.find((one) => one.act === name), words = label(trouble, name, p.offers);
    const what = about.table ?? (about.group !== undefined ? `group ${about.group}` : null);
    return offer(name, what ? `${words}: ${what}` : words, about, { short: words, class: "first", why_not: known?.why_not });
  });
}

const NO_PLACE = new Set([null, undefined]);

/** One trouble, with its remedy and its action. */
export function troubleView(p, trouble, event) {
  const place = placeOf(p, trouble.about);
  return h("li", { class: `trouble ${trouble.level}`, "data-key": `${trouble.code} ${trouble.about?.table ?? trouble.about?.group ?? ""}` },
    h("div", { class: "row" },
      h("div", { class: "grow" },
        h("strong", null, prose(sentence(trouble.text))),
        (trouble.since || trouble.by) && h("small", null, trouble.since && [" for ", lasting(trouble.since)], trouble.by && `, by ${trouble.by}`),
        trouble.due_at && h("small", null, " in ", until(trouble.due_at))),
      h("span", { class: "acts" }, buttons(p, trouble), event && p.may_act && acknowledge(event), trouble.about?.dag ? airflow(`dags/${encodeURIComponent(trouble.about.dag)}`, "Open in Airflow") : !NO_PLACE.has(place) && h("a", { class: "button", href: place }, "Show"))),
    trouble.error && h("p", { class: "error" }, prose(trouble.error)),
    trouble.remedy && h("p", { class: "remedy" }, h("b", null, "What to do: "), prose(trouble.remedy)),
    hindrances(p, trouble));
}

/** Events that need attention and are not acknowledged. */
function attentionView(p, event) {
  return h("li", { class: `trouble ${event.level}`, "data-key": `event ${event.id}` },
    h("div", { class: "row" },
      h("div", { class: "grow" }, h("strong", null, event.label), h("small", null, " ", ago(event.at)),
        event.table && [" ", h("a", { href: tableAddress(p, event.table) }, named(event.table))]),
      p.may_act && h("span", { class: "acts" }, acknowledge(event))),
    h("p", null, prose(event.text)),
    event.remedy && h("p", { class: "remedy" }, h("b", null, "What to do: "), prose(event.remedy)));
}

export const acknowledge = (event) => offer("acknowledge", "Acknowledge", { id: event.id }, { "aria-label": `Acknowledge: ${event.text}` });

//: As many tables of one trouble are named. Where there are more, their sum stands beside them.
const NAMED = 3;
//: As many problems stand open above the freshness of the copy. The others are folded.
const SHOWN = 3;

/** Troubles without the sums of those that are named one by one. */
export function distinctTroubles(p) {
  const named = (code) => p.troubles.filter((one) => one.code === code && one.about?.table).length;
  const isCovered = (one) => {
    const n = one.code?.startsWith("tables_") ? named(one.code.replace("tables_", "table_")) : 0;
    return n > 0 && n < NAMED;
  };
  // What concerns the whole pipeline comes before single tables, their sum after them, and what needs nobody last.
  const rank = (one) => (one.level === "info" ? 3 : one.about?.table ? 1 : one.code?.startsWith("tables_") ? 2 : 0);
  return p.troubles.filter((one) => !isCovered(one)).sort((a, b) => rank(a) - rank(b));
}

const isSame = (trouble, event) => event.level === "failed" && (trouble.about?.table ? event.table === trouble.about.table : trouble.level === "failed" && trouble.about?.view === "stream" && !event.table);

/** Actions on the whole pipeline that stand beside a trouble, and need not stand anywhere else. */
export const actsOfTroubles = (p) => new Set(distinctTroubles(p).filter((one) => !isAboutOne(one)).flatMap((one) => one.acts ?? []));

const byLevel = (a, b) => (a.level !== "failed") - (b.level !== "failed");

/** Troubles, the event beside each, and the other events. One that began a trouble which lasts is acknowledged there. */
function problemsOf(p) {
  const all = p.events?.newest ?? [], troubles = distinctTroubles(p);
  const beside = new Map(troubles.map((one) => [one, all.find((event) => isSame(one, event))]));
  return { troubles, beside, events: all.filter((event) => ![...beside.values()].includes(event)).sort(byLevel) };
}

/** All that is wrong with a pipeline, the worst first, or nothing. */
export function troublePanel(p) {
  const more = (p.events?.attention ?? 0) - (p.events?.newest?.length ?? 0);
  const { troubles, beside, events } = problemsOf(p), needsNobody = (one) => one.level === "info";
  if (!troubles.length && !events.length) return null;
  const listed = [...troubles.filter((one) => !needsNobody(one)), ...events, ...troubles.filter(needsNobody)];
  const shown = listed.map((one) => (events.includes(one) ? attentionView(p, one) : troubleView(p, one, beside.get(one))));
  const urgent = listed.slice(SHOWN).filter((one) => one.level === "failed").length;
  return h("section", { class: "troubles", "aria-label": "What is wrong", "data-key": "troubles" },
    h("ul", null, shown.slice(0, SHOWN)),
    shown.length > SHOWN && h("details", { "data-key": "more" }, h("summary", null, `${shown.length - SHOWN} more`, urgent > 0 && h("small", { class: "failed" }, ` ${urgent} of them ${urgent === 1 ? "needs" : "need"} action`)), h("ul", null, shown.slice(SHOWN))),
    p.troubles_more > 0 && h("p", null, h("a", { href: `#/p/${p.book}/${encodeURIComponent(p.name)}/tables` }, `${many(p.troubles_more, "more problem")}`)),
    more > 0 && h("p", null, h("a", { href: placeOf(p, { view: "timeline", attention: true }) }, `${many(more, "more event")} not acknowledged`)));
}

/** Text of the server that begins in lower case, as a sentence begins. Names of tables stay as they are. */
export const sentence = (text) => (/^[a-z]+ /.test(text) && !text.includes(".") ? text[0].toUpperCase() + text.slice(1) : text);
