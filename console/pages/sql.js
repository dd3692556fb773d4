// Questions to the history, in SQL. Read-only: the master runs nothing but selects.

import { html, useState } from "../vendor/htm-preact.js";
import { useRead } from "../live.js";
import { hasSql, sql } from "../past.js";
import { Card, Empty, Page, Problem, useQuery } from "../parts.js";
import { moment, plural } from "../units.js";

const EXAMPLES = [
  ["Events by kind today", "select event, sum(count) as events from task_events_daily\n  where day = date('now') group by event order by events desc"],
  ["Failures by job", "select user, job, exit_class, exit_code, count(*) as times from task_events\n  where event in ('failed', 'failed-for-good') group by 1, 2, 3, 4 order by times desc limit 50"],
  ["Charging by user and band", "select user, band, sum(cpu_used) / 3600000 as core_hours,\n  sum(ram_used) / 3686400 as gib_hours from usage_daily group by user, band order by core_hours desc"],
  ["Cost by team", "with price(core_hour, gib_hour) as (values (0.030, 0.004))\nselect coalesce(json_extract(labels, '$.team'), 'nobody') as team, sum(cpu_used) / 3.6e6 * core_hour\n  + sum(ram_used) / 1024 / 3600.0 * gib_hour as cost from usage_daily, price group by team order by cost desc"],
  ["What is asked for now", "select user, band, sum(cpu_limit * tasks) / 1000.0 as cores, sum(tasks) as tasks, sum(pending) as pending\n  from jobs_now where ended_at is null group by user, band order by cores desc"],
  ["95th percentile of use", "select user, job, percentile(cpu_avg, 95, millis) as cpu_p95, max(cpu_limit) as cpu_limit\n  from usage where day = date('now') group by user, job order by cpu_limit - cpu_p95 desc limit 50"],
  ["Newest events", "select time, object, event, machine, reason from events\n  order by log_index desc, position desc limit 50"],
];

const MISSING = {
  message: "This master answers no SQL.",
  hint: "It is of a build without the history; upgrade it to ask questions here.",
};

function csv({ columns, rows }) {
  const cell = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns, ...rows];
  return `${lines.map((line) => line.map(cell).join(",")).join("\n")}\n`;
}

function save(answer) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv(answer)], { type: "text/csv" }));
  link.download = "answer.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

function show(name, value) {
  if (value === null) return html`<span class="faint">null</span>`;
  return name === "time" && typeof value === "number" ? moment(value) : String(value);
}

function Answer({ answer }) {
  const { columns, rows } = answer;
  const numeric = columns.map((name, i) => name !== "time" && rows.every((row) => row[i] === null || typeof row[i] === "number"));
  const back = answer.reaches_back_to ? `, history reaches back to ${moment(answer.reaches_back_to)}` : "";
  return html`<${Card} title="Answer" aside="${plural(rows.length, "row")}${answer.truncated ? ", cut off here" : ""}${back}">
    ${rows.length
      ? html`<div class="scroll"><table aria-label="Answer">
          <thead><tr>${columns.map((c, i) => html`<th class=${numeric[i] ? "number" : ""}>${c}</th>`)}</tr></thead>
          <tbody>${rows.slice(0, 1000).map((row) => html`<tr>${row.map((value, i) => html`<td class=${numeric[i] ? "number" : ""}>${show(columns[i], value)}</td>`)}</tr>`)}</tbody>
        </table></div>`
      : html`<${Empty}>No rows.<//>`}
    <p class="buttons"><button onClick=${() => save(answer)}>Save as CSV</button></p>
  <//>`;
}

const COLUMNS = `select table_name, table_description, column_name, description from history_columns`;

/** The tables with their columns, as the master describes them. */
async function readTables() {
  if (!(await hasSql())) return [];
  const tables = new Map();
  for (const [name, about, column, says] of (await sql(COLUMNS)).rows) {
    if (!tables.has(name)) tables.set(name, { name, about, columns: [] });
    tables.get(name).columns.push([column, says]);
  }
  return [...tables.values()];
}

function Tables({ ask }) {
  const tables = useRead(readTables, []);
  if (!tables.value || !tables.value.length) return null;
  return html`<${Card} title="Tables" aside=${plural(tables.value.length, "table")}>
    ${tables.value.map(({ name, about, columns }) => html`<details>
      <summary><code>${name}</code> ${about}</summary>
      <p class="buttons"><button type="button" onClick=${() => ask(`select * from ${name} limit 50`)}>Show rows</button></p>
      <dl>${columns.map(([column, says]) => html`<dt><code>${column}</code></dt><dd>${says}</dd>`)}</dl>
    </details>`)}
  <//>`;
}

export default function Sql() {
  const [query, keep] = useQuery("q", "");
  const [text, set] = useState(query || EXAMPLES[0][1]);
  const [state, put] = useState({ answer: null, error: null, busy: false });
  const run = async (event) => {
    if (event) event.preventDefault();
    keep(text);
    put({ ...state, busy: true });
    try {
      if (!(await hasSql())) throw MISSING;
      put({ answer: await sql(text), error: null, busy: false });
    } catch (error) {
      put({ answer: null, error, busy: false });
    }
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  };
  return html`<${Page} title="SQL">
    <form class="sql" onSubmit=${run}>
      <label>Query <small>Ctrl+Enter runs it</small>
        <textarea data-filter="" rows="6" spellcheck="false" value=${text}
          onInput=${(event) => set(event.target.value)} onKeyDown=${keys}></textarea></label>
      <p class="buttons"><button class="primary" disabled=${state.busy}>Run</button>
        ${EXAMPLES.map(([title, example]) => html`<button type="button" onClick=${() => set(example)}>${title}</button>`)}</p>
    </form>
    ${state.error && html`<${Problem} error=${state.error} />`}
    ${state.error && state.error.body && state.error.body.details && state.error.body.details.caret &&
    html`<pre class="words">${state.error.body.details.caret}</pre>`}
    ${state.answer && html`<${Answer} answer=${state.answer} />`}
    <${Tables} ask=${set} />
  <//>`;
}
