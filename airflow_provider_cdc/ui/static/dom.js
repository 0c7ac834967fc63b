// Elements and texts. Text is only ever inserted as text: nothing on the page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function element(node, attributes, kids) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const kid of kids.flat(Infinity)) {
    if (kid !== null && kid !== undefined && kid !== false) node.append(kid instanceof Node ? kid : String(kid));
  }
  return node;
}

/** An HTML element with attributes and content. */
export const h = (tag, attributes, ...kids) => element(document.createElement(tag), attributes, kids);

/** An SVG element with attributes and content. */
export const s = (tag, attributes, ...kids) => element(document.createElementNS(SVG, tag), attributes, kids);

/** Make `old` look like `fresh`, but keep its nodes, to preserve focus, selection and scroll positions. */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || key(old) !== key(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-own")) return; // draws itself
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const known = new Map([...old.childNodes].filter(key).map((node) => [key(node), node]));
  const kids = [...fresh.childNodes];
  kids.forEach((kid, at) => {
    let here = old.childNodes[at];
    const same = key(kid) && known.get(key(kid));
    if (same && same !== here) {
      old.insertBefore(same, here ?? null);
      here = same;
    }
    if (!here) old.append(kid);
    else morph(here, kid);
  });
  while (old.childNodes.length > kids.length) old.lastChild.remove();
}

const key = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

/** Replace the content of a node. */
export function fill(node, ...kids) {
  const fresh = node.cloneNode(false);
  element(fresh, null, kids);
  morph(node, fresh);
}

/** Query the application. Errors have `message` and `remedy`. */
export async function ask(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("Airflow's API server does not answer"), { remedy: "Trying again" });
  }
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  const words = { 401: "You are no longer logged in to Airflow", 403: "You may not see this" };
  const remedies = { 401: "Log in, then reload the page", 403: "Ask an Airflow administrator for the right to read the DAG" };
  throw Object.assign(new Error(words[answer.status] ?? said.detail ?? `The server answered ${answer.status}`), {
    remedy: said.remedy ?? remedies[answer.status] ?? "",
    status: answer.status,
  });
}

/** Perform an action. The header proves that the request comes from this page. */
export async function act(path, about) {
  const headers = { "X-CDC-Page": "1", "Content-Type": "application/json", Accept: "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(about) });
  const said = await answer.json().catch(() => ({}));
  if (answer.ok) return said;
  const words = typeof said.detail === "string" ? said.detail : `The server answered ${answer.status}`;
  throw new Error(said.remedy ? `${words}. ${said.remedy}` : words);
}

const NUMBER = new Intl.NumberFormat("en");
export const number = (n) => (n === null || n === undefined ? "–" : NUMBER.format(n));

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  for (; n >= 1000 && unit < 5; unit++) n /= 1000;
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

export function seconds(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1) return `${Math.round(n * 1000)} ms`;
  if (n < 90) return `${n < 10 ? n.toFixed(1) : Math.round(n)} s`;
  if (n < 5400) return `${Math.round(n / 60)} min`;
  if (n < 172800) return `${Math.floor(n / 3600)} h ${Math.round((n % 3600) / 60)} min`;
  return `${Math.floor(n / 86400)} days ${Math.round((n % 86400) / 3600)} h`;
}

/** A number with its noun. */
export const many = (n, one, more) => `${number(n)} ${n === 1 ? one : (more ?? `${one}s`)}`;

export const rate = (n) => (n === null || n === undefined ? "–" : `${NUMBER.format(n < 10 ? Math.round(n * 10) / 10 : Math.round(n))} /s`);

/** A time: how long ago, with the exact time as a tooltip. */
export function ago(text) {
  if (!text) return "–";
  const at = new Date(text);
  const past = (Date.now() - at) / 1000;
  const words = past < 5 ? "just now" : `${seconds(past)} ago`;
  return h("time", { datetime: text, title: at.toLocaleString("en-GB", { timeZone: "UTC", timeZoneName: "short" }) }, words);
}

/** A table. Each column: [head, cell of a row, {r: align right, text: long text}]. On a phone each row becomes a block. */
export function table(label, columns, rows, name) {
  const cls = (how) => [how?.r && "r num", how?.text && "text"].filter(Boolean).join(" ") || null;
  return h("table", { class: "stack", "aria-label": label },
    h("thead", null, h("tr", null, columns.map(([head, , how]) => h("th", { scope: "col", class: cls(how) }, head)))),
    h("tbody", null, rows.map((row) => h("tr", { "data-key": name?.(row) },
      columns.map(([head, cell, how]) => h("td", { class: cls(how), "data-label": head || null }, cell(row)))))));
}

/** A link to a page of Airflow, which opens outside of the frame that this page may be in. */
export const airflow = (path, ...kids) => h("a", { href: new URL(`../${path}`, document.baseURI).href, "data-out": true }, kids);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-out]");
  if (!link || window.parent === window) return;
  // The frame may not navigate its parent, but a link in the parent document may.
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.click();
});
