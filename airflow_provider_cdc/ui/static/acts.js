// Actions. Each one is first described and confirmed. The server decides, and gives the reason for a refusal.

import { act, h } from "./dom.js";

/** A dialog. `kids` makes its content and gets `close`, whose argument becomes the result. */
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

/** Describe an action, ask for confirmation, and perform it. True if it was performed. */
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

/** Let the user choose an action for a table. Returns name, label and table of the action, or nothing. */
export function choose(table, state) {
  const acts = state === "suspended"
    ? [["reread", "Resume", "Re-snapshots the whole table, which then rejoins the stream."]]
    : [["suspend", "Suspend", "The stream continues without it."], ["reread", "Re-snapshot", "Replaces all of its rows."], ["reread_keys", "Re-snapshot some keys", "Replaces only the rows that meet a condition on the key."]];
  return dialog(table, (close) => [
    h("ul", { class: "choices" }, acts.map(([name, label, says]) => h("li", null, button(label, {}, () => close([name, `${label}: ${table}`, { table }])), " ", h("small", null, says)))),
    h("div", { class: "top" }, button("Cancel", {}, () => close(null))),
  ]);
}

/** A button for an action. If the action is impossible now, the dialog says why. */
export const offer = (name, label, about = {}, how = {}) =>
  h("button", { type: "button", "data-act": name, "data-label": label, "data-about": JSON.stringify(about), ...how }, how.short ?? label);

/** Control requests and their outcomes. */
export function requests(p, ago) {
  const words = { open: "waiting for the stream", taken: "in progress", done: "done", refused: "refused", withdrawn: "withdrawn" };
  return h("ul", { class: "events" }, p.requests.map((r) => h("li", { class: `ev ${r.state === "refused" ? "bad" : ""}`, "data-key": `request ${r.id}` },
    h("b", null, `${r.kind !== "reread" ? r.kind : r.part ? "re-snapshot some keys of" : "re-snapshot"} ${r.table || "all tables"}`), " ", h("small", null, `by ${r.by}, `, ago(r.at)),
    r.condition && h("div", null, h("code", null, r.condition)),
    h("div", null, words[r.state] ?? r.state, r.finished_at && [" ", ago(r.finished_at)], r.outcome && `: ${r.outcome}`),
    r.state === "open" && p.may_act && h("div", null, offer("withdraw", "Withdraw", { id: r.id }, { "aria-label": `Withdraw: ${r.kind} ${r.table || "all tables"}` })))));
}

const quoted = (text) => (/^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that explains how a row came to be. It shows values, which the page never does. */
export function why(p, chosen) {
  const names = p.tables_list.map((t) => `${t.database}.${t.table}`);
  const table = names.includes(chosen) ? chosen : names[0];
  return [
    h("p", null, "This command shows which chunk read a row, which changes corrected it, and what changed it last. It shows values, which this page never does."),
    h("p", null, h("label", { for: "why" }, "Table "), h("select", { id: "why" }, names.map((name) => h("option", { value: name }, name)))),
    h("p", null, h("code", { id: "command" }, `airflow-cdc explain -f FILE --table ${quoted(table)} --key KEY`)),
  ];
}
