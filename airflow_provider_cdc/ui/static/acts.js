// What can be done. Each act first says what it will do, and asks; the server decides, and says why not.

import { act, h } from "./dom.js";

/** A dialog. `kids` make its content from what closes it; it is answered by what that is given. */
function dialog(title, kids) {
  return new Promise((answer) => {
    const alert = h("p", { class: "error", role: "alert" });
    const box = h("dialog", { "aria-labelledby": "asked" }, h("h2", { id: "asked" }, title));
    let found = null;
    const close = (value) => { found = value; box.close(); };
    box.append(...kids(close, alert).flat().filter(Boolean), alert);
    box.addEventListener("close", () => { box.remove(); answer(found); });
    document.body.append(box);
    box.showModal();
  });
}

const button = (label, how, click) => {
  const made = h("button", { type: "button", ...how }, label);
  made.addEventListener("click", click);
  return made;
};

/** Say what an act will do, ask, and do it. True if it was done. */
export async function perform(base, name, label, about) {
  const path = `${base}/acts/${name}`;
  const plan = await act(path, { ...about, dry_run: true }).catch((error) => ({ why_not: error.message }));
  if (plan.why_not) {
    await dialog(label, (close) => [h("p", { class: "error" }, `${plan.why_not}.`), h("div", { class: "top" }, button("Close", {}, () => close()))]);
    return false;
  }
  return dialog(label, (close, alert) => {
    const typed = plan.asks && h("input", { id: "typed", autocomplete: "off", spellcheck: "false", placeholder: "id >= 100 AND id < 200" });
    const go = button(label.split(":")[0], {}, async () => {
      go.disabled = true;
      try {
        await act(path, { ...about, ...(typed && { condition: typed.value }) });
        close(true);
      } catch (error) {
        alert.textContent = `${error.message}.`;
        go.disabled = false;
        (typed || go).focus();
      }
    });
    typed?.addEventListener("keydown", (event) => event.key === "Enter" && go.click());
    return [
      h("p", { id: "says" }, `${plan.says}.`),
      typed && h("p", null, h("label", { for: "typed" }, plan.asks), typed),
      h("div", { class: "top" }, go, button("Cancel", {}, () => close(false))),
    ];
  });
}

/** What can be done with a table, to choose from. Returns name, label and table of an act, or nothing. */
export function choose(table, state) {
  const acts = state === "suspended"
    ? [["reread", "Resume", "It is read again as a whole, and rejoins the stream."]]
    : [["suspend", "Suspend", "The stream goes on without it."], ["reread", "Read again", "All of its rows are exchanged."], ["reread_keys", "Read some keys again", "Only the rows that a condition on the key says."]];
  return dialog(table, (close) => [
    h("ul", { class: "choices" }, acts.map(([name, label, says]) => h("li", null, button(label, {}, () => close([name, `${label}: ${table}`, { table }])), " ", h("small", null, says)))),
    h("div", { class: "top" }, button("Cancel", {}, () => close(null))),
  ]);
}

/** A button for an act; one that is impossible now says why. */
export const offer = (name, label, about = {}, how = {}) =>
  h("button", { type: "button", "data-act": name, "data-label": label, "data-about": JSON.stringify(about), ...how }, how.short ?? label);

/** What people have asked the stream for, and what has become of it. */
export function requests(p, ago) {
  const words = { open: "waits for the stream", taken: "the stream is at it", done: "done", refused: "refused", withdrawn: "withdrawn" };
  return h("ul", { class: "events" }, p.requests.map((r) => h("li", { class: `ev ${r.state === "refused" ? "bad" : ""}`, "data-key": `request ${r.id}` },
    h("b", null, `${r.kind === "suspend" ? "suspend" : r.part ? "read some keys again" : "read again"} ${r.table}`), " ", h("small", null, `by ${r.by}, `, ago(r.at)),
    r.condition && h("div", null, h("code", null, r.condition)),
    h("div", null, words[r.state] ?? r.state, r.finished_at && [" ", ago(r.finished_at)], r.outcome && `: ${r.outcome}`),
    r.state === "open" && p.may_act && h("div", null, offer("withdraw", "Withdraw", { id: r.id }, { "aria-label": `Withdraw: ${r.kind} ${r.table}` })))));
}

const quoted = (text) => (/^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that tells how a row came to be: values are shown there, never here. */
export function why(p, chosen) {
  const names = p.tables_list.map((t) => `${t.database}.${t.table}`);
  const table = names.includes(chosen) ? chosen : names[0];
  return [
    h("p", null, "The command line says which chunk read a row, which changes corrected it, and what touched it last. It shows values; this page never does."),
    h("p", null, h("label", { for: "why" }, "Table "), h("select", { id: "why" }, names.map((name) => h("option", { value: name }, name)))),
    h("p", null, h("code", { id: "command" }, `airflow-cdc explain -f FILE --table ${quoted(table)} --key KEY`)),
  ];
}
