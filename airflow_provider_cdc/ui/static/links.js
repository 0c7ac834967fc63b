// Addresses of this page and of Airflow, and names of what they lead to.

import { airflow, h, named, outside, prose } from "./dom.js";

export const pipelineAddress = (p) => `#/p/${p.book}/${encodeURIComponent(p.name)}`;
export const tableAddress = (p, table) => `${pipelineAddress(p)}/table/${encodeURIComponent(table)}`;

/** Where on this page something is. about: {view, table?, group?, state?, trouble?, attention?}, as troubles have it. */
export function placeOf(p, about) {
  if (!p.book) return null;
  const place = pipelineAddress(p);
  if (about?.table) return tableAddress(p, about.table);
  if (about?.view === "tables" && about.trouble) return `${place}/tables/problems`;
  if (about?.view === "tables") return `${place}/tables/${encodeURIComponent(about.state ?? "")}`;
  if (about?.view === "groups" || about?.view === "group") return `${place}/snapshot`;
  if (about?.view === "timeline") return `${place}/timeline${about.attention ? "/attention" : ""}`;
  return about?.view ? `${place}/stream` : place;
}

/** A task, with a link to its log in Airflow if the user may read its DAG. */
export function taskLink(task) {
  if (!task) return null;
  if (!task.dag_id || !task.run_id || !task.task_id) return task.label;
  const mapped = task.map_index >= 0 ? `/mapped/${task.map_index}` : "";
  const query = task.try_number ? `?try_number=${task.try_number}` : "";
  const path = ["dags", task.dag_id, "runs", task.run_id, "tasks", task.task_id].map(encodeURIComponent).join("/");
  return airflow(path + mapped + query, prose(`${task.label}: log`));
}

export const dagLink = (dag) => airflow(`dags/${encodeURIComponent(dag)}`, "DAG ", named(dag));
export const sparkLink = (address) => (/^https?:/.test(address ?? "") ? outside(address, "Spark UI") : null);

/** A position in the source's binlog. */
export const position = (at) => (at?.file ? h("code", null, `${at.file}:${at.position}`) : "–");
