// Actions. Each one is first described and confirmed. The server decides, and gives the reason for a refusal.

import { h, plain, prose } from "./dom.js";
import { act } from "./server.js";

/** A dialog. `kids` makes its content and gets `close`, whose argument becomes the result. */
function dialog(title, kids) {
  return new Promise((answer) => {
    const alert = h("p", { class: "error", role: "alert" });
    const box = h("dialog", { "aria-labelledby": "asked" }, h("h2", { id: "asked" }, prose(title)));
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
    await dialog(label, (close) => [h("p", { class: "error" }, prose(`${plan.why_not}.`)), h("div", { class: "row" }, button("Close", {}, () => close()))]);
    return false;
  }
  return dialog(label, (close, alert) => {
    const typed = plan.asks && h("input", { id: "typed", autocomplete: "off", spellcheck: "false", placeholder: "id >= 100 AND id < 200" });
    const go = button(label.split(":")[0], { class: "first" }, async () => {
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
      h("p", { id: "says" }, prose(`${plan.says}.`)),
      typed && h("p", null, h("label", { for: "typed" }, plan.asks), typed),
      h("div", { class: "row" }, go, button("Cancel", {}, () => close(false))),
    ];
  });
}

/** A button for an action. One that is impossible now does nothing but say why. */
export const offer = (name, label, about = {}, { short, why_not, ...how } = {}) =>
  h("button", { type: "button", "data-act": name, "data-label": label, "data-about": JSON.stringify(about), "data-why": why_not, "aria-disabled": why_not ? "true" : null, title: why_not && plain(why_not), "aria-label": short && short !== label ? label : null, ...how }, short ?? label);

/** Buttons for what the server offers. */
export const offers = (list, of, how = {}) => (list ?? []).map((one) =>
  offer(one.act, of ? `${one.label}: ${of}` : one.label, one.about ?? {}, { "data-key": one.act, short: one.label, why_not: one.why_not, ...how }));
