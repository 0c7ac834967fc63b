// Requests to the server. Errors have `message` and `remedy`.

import { setServerTime } from "./format.js";

//: Answers by address, with their tags. The server says 304 if one is still true.
const answers = new Map();
const MOST_ANSWERS = 60;
const WORDS = { 401: "You are no longer logged in to Airflow", 403: "You may not see this" };
const REMEDIES = { 401: "Log in, then reload the page", 403: "Ask an Airflow administrator for the right to read the DAG" };

/** What an error of the server says. */
const detailText = (detail, status) => (typeof detail === "string" ? detail : `The server answered ${status}`);

/** Query the application. If nothing has changed, the answer is the same object as the last time. */
export async function ask(path, signal) {
  const known = answers.get(path);
  let answer;
  try {
    answer = await fetch(path, { signal, headers: { Accept: "application/json", ...(known && { "If-None-Match": known.tag }) } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("Airflow's API server does not answer"), { remedy: "Trying again" });
  }
  setServerTime(answer.headers.get("Date"));
  if (answer.status === 304) return known.body;
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    throw Object.assign(new Error(WORDS[answer.status] ?? detailText(body.detail, answer.status)), {
      remedy: body.remedy ?? REMEDIES[answer.status] ?? "",
      status: answer.status,
    });
  }
  const tag = answer.headers.get("ETag");
  answers.delete(path);
  if (tag) answers.set(path, { tag, body });
  if (answers.size > MOST_ANSWERS) answers.delete(answers.keys().next().value);
  return body;
}

/** Perform an action. The header proves that the request comes from this page. */
export async function act(path, about) {
  const headers = { "X-CDC-Page": "1", "Content-Type": "application/json", Accept: "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(about) }).catch(() => {
    throw new Error("Airflow's API server does not answer. Try again");
  });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const text = detailText(body.detail, answer.status);
  throw new Error(body.remedy ? `${text}. ${body.remedy}` : text);
}
