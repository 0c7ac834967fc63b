// Numbers, sizes, durations and times as people read them.

import { h } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en");
const isUnknown = (n) => n === null || n === undefined;

export const number = (n) => (isUnknown(n) ? "–" : NUMBER.format(n));

/** A number with its noun. */
export const many = (n, one, more) => `${number(n)} ${n === 1 ? one : (more ?? `${one}s`)}`;

export function bytes(n) {
  if (isUnknown(n)) return "–";
  let unit = 0;
  for (; n >= 1000 && unit < 5; unit++) n /= 1000;
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

const withRest = (n, whole, part, one, rest) => {
  const left = Math.floor((n % whole) / part);
  return left ? `${Math.floor(n / whole)} ${one} ${left} ${rest}` : `${Math.floor(n / whole)} ${one}`;
};

/** A duration. `n` is in seconds. */
export function seconds(n) {
  if (isUnknown(n)) return "–";
  if (n < 1) return `${Math.round(n * 1000)} ms`;
  if (n < 90) return `${n < 10 ? n.toFixed(1) : Math.round(n)} s`;
  if (n < 5400) return `${Math.round(n / 60)} min`;
  if (n < 172800) return withRest(n, 3600, 60, "h", "min");
  return withRest(n, 86400, 3600, "days", "h");
}

export const rate = (n) => (isUnknown(n) ? "–" : `${NUMBER.format(n < 10 ? Math.round(n * 10) / 10 : Math.round(n))} /s`);

export const percent = (part, whole) => (whole ? Math.floor((100 * part) / whole) : 0);

//: How far the server's clock is ahead of this one, in ms, and the time of its last answer.
let ahead = 0, answered = null;

export function setServerTime(text) {
  const at = Date.parse(text);
  if (Number.isNaN(at)) return;
  // The header has whole seconds: smaller differences are not known.
  if (Math.abs(at - Date.now()) > 2000) ahead = at - Date.now();
  else ahead = 0;
  answered = new Date(Date.now() + ahead).toISOString();
}

export const serverNow = () => Date.now() + ahead;

/** When the shown values were true: the time of the server's last answer. */
export const asOf = () => h("span", { class: "asof" }, "as of ", clock(answered));

const passed = (text) => Math.max(0, (serverNow() - new Date(text)) / 1000);
const agoText = (text) => (passed(text) < 5 ? "just now" : `${duration(passed(text))} ago`);
const remaining = (text) => Math.max(0, (new Date(text) - serverNow()) / 1000);
export const isPast = (text) => remaining(text) === 0;
const duration = (n) => (n < 90 ? `${Math.round(n)} s` : seconds(n));
const AGES = { ago: agoText, for: (text) => duration(passed(text)), left: (text) => (remaining(text) ? duration(remaining(text)) : "no longer") };
const exactly = (text) => new Date(text).toLocaleString("en-GB", { timeZone: "UTC", timeZoneName: "short" });
const timeNode = (text, kind, words) => h("time", { datetime: text, title: exactly(text), "data-age": kind }, words);

/** How long ago something was. The exact time is a tooltip, and the words follow the clock. */
export const ago = (text) => (text ? timeNode(text, "ago", agoText(text)) : "–");

/** How long something has lasted. */
export const lasting = (text) => (text ? timeNode(text, "for", duration(passed(text))) : "–");

/** How long it is until a time. */
export const until = (text) => (text ? timeNode(text, "left", AGES.left(text)) : "–");

/** A time of the day, with the date if it is not today's. */
export function clock(text) {
  if (!text) return "–";
  const at = new Date(text), today = at.toDateString() === new Date().toDateString();
  const how = { hour: "2-digit", minute: "2-digit", second: "2-digit", ...(today ? {} : { day: "2-digit", month: "short" }) };
  return h("time", { datetime: text, title: exactly(text) }, at.toLocaleString("en-GB", how));
}

/** Let the ages on the page follow the clock, though nothing new has come. */
export function followClock() {
  setInterval(() => {
    if (document.hidden) return;
    for (const node of document.querySelectorAll("time[data-age]")) {
      const words = AGES[node.dataset.age](node.dateTime);
      if (node.textContent !== words) node.textContent = words;
    }
  }, 1000);
}

/** Words of a state or a kind that the server names in code. */
export const words = (code) => String(code ?? "").replaceAll("_", " ");
