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

//: Longer words of a text may be names; longer parts of a name are cut off where they do not fit.
const LONG_WORD = 16, LONG_PART = 14;

/** A name, such as that of a table. It wraps after a dot, an underscore and the like, never inside a word. */
export function named(name) {
  const parts = String(name).match(/[^._/:-]*[._/:-]+|[^._/:-]+/g) ?? [];
  const isLong = parts.some((part) => part.length > LONG_PART);
  return h("span", { class: "name", title: isLong ? name : null }, parts.map((part, at) => [at > 0 && h("wbr"), part.length > LONG_PART ? h("span", { class: "piece" }, part) : part]));
}

const withNames = (text) => text.split(/(\s+)/).map((word) => (word.length > LONG_WORD && /^\W*[\w$]+([./:-]+[\w$]+)*\W*$/.test(word) ? named(word) : word));

/** Text of the server: names in it wrap as names do, and what is in backticks is code. */
export const prose = (text) => String(text ?? "").split(/(`[^`]+`)/).map((piece) => (/^`[^`]+`$/.test(piece) ? h("code", null, withNames(piece.slice(1, -1))) : withNames(piece)));

/** The same as plain text, for a tooltip. */
export const plain = (text) => String(text ?? "").replaceAll("`", "");

/** A node that draws itself, where it stands: itself, or once it is on the page what `morph` takes for it. */
export const inPlace = (node) => (node.isConnected ? node.cloneNode(false) : node);

/**
 * A table. Each column: [head, cell of a row, {r: align right, text: long text, key: sort key}]. In a narrow place each
 * row becomes a block.
 *
 * :param sorting: {key, desc, choose}: what the rows are sorted by; heads with a key are buttons that choose it.
 */
export function table(label, columns, rows, name, sorting) {
  const cls = (how) => [how?.r && "r num", how?.text && "text"].filter(Boolean).join(" ") || null;
  const head = ([words, , how]) => {
    if (!how?.key || !sorting) return h("th", { scope: "col", class: cls(how) }, words);
    const on = sorting.key === how.key;
    return h("th", { scope: "col", class: cls(how), "aria-sort": on ? (sorting.desc ? "descending" : "ascending") : null },
      h("button", { type: "button", class: "plain", "data-sort": how.key }, words, h("span", { "aria-hidden": "true" }, on ? (sorting.desc ? " ↓" : " ↑") : "")));
  };
  return h("table", { class: "stack", "aria-label": label },
    h("thead", null, h("tr", null, columns.map(head))),
    h("tbody", null, rows.map((row) => h("tr", { "data-key": name?.(row) },
      columns.map(([words, cell, how], at) => {
        const content = cell(row), isUnknown = content === "–";
        return h("td", { class: [cls(how), isUnknown && "none"].filter(Boolean).join(" ") || null, "data-label": words && (at > 0 || typeof content === "string") ? words : null }, content);
      })))));
}

/** A card with a heading. */
export const card = (title, how, ...kids) => h("section", { class: "card", "aria-label": title, "data-key": title, ...how }, h("h2", null, title), kids);

/** Names and values. Lines without a value are left out. */
export const facts = (...lines) => h("dl", { class: "facts" }, lines.filter((one) => one && one[1] !== null && one[1] !== undefined && one[1] !== false).map(([name, ...value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

export const isFramed = () => window.parent !== window;

/** A link to a place outside of this page, which opens outside of the frame that the page may be in. */
export const outside = (address, ...kids) => h("a", { href: new URL(address, document.baseURI).href, "data-out": true }, kids);

/** A link to a page of Airflow. */
export const airflow = (path, ...kids) => outside(`../${path}`, kids);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-out]");
  if (!link || !isFramed()) return;
  // The frame may not navigate its parent, but a link in the parent document may.
  event.preventDefault();
  const outer = window.parent.document.createElement("a");
  outer.href = link.href;
  outer.click();
});
