// All jobs: found by name, owner, state or label, sorted by any column, fresh by watch.

import { html, useMemo } from "../vendor/htm-preact.js";
import { jobs, useStore } from "../live.js";
import { Badge, Choice, Filter, Link, Page, Problem, Table, Tally, Wait, When, to, useQuery, useSort } from "../parts.js";
import { runJob } from "../run.js";
import { amount, bandOf, isLive, jobState, plural, total, words } from "../units.js";

export const COLUMNS = [
  {
    key: "name",
    title: "Job",
    of: (job) => `${job.user}/${job.name}`,
    show: (job) => html`<${Link} to=${to("jobs", job.user, job.name)}><b>${job.name}</b><//>`,
  },
  {
    key: "user",
    title: "Owner",
    of: (job) => job.user,
    show: (job) => html`<${Link} to=${`${to("jobs")}?q=${encodeURIComponent(`${job.user}/`)}`} class="quiet">${job.user}<//>`,
  },
  {
    key: "state",
    title: "State",
    of: (job) => jobState(job)[0],
    show: (job) => html`<${Badge} tone=${jobState(job)[1]}>${jobState(job)[0]}<//>
      ${job.updating && html` <${Badge} tone="info">${job.update_complete ? "updated, not closed yet" : "updating"}<//>`}`,
  },
  {
    key: "tasks",
    title: "Tasks",
    of: (job) => total(job.tasks),
    show: (job) => html`<${Tally} tasks=${job.tasks} />`,
  },
  {
    key: "priority",
    title: "Priority",
    number: true,
    of: (job) => job.priority,
    show: (job) => html`${job.priority} <small>${words(bandOf(job.priority))}</small>`,
  },
  {
    key: "cpu",
    title: "CPU a task",
    number: true,
    of: (job) => job.limits.cpu,
    show: (job) => amount("cpu", job.limits.cpu),
  },
  {
    key: "ram",
    title: "Memory a task",
    number: true,
    of: (job) => job.limits.ram,
    show: (job) => amount("ram", job.limits.ram),
  },
  {
    key: "submitted",
    title: "Submitted",
    number: true,
    of: (job) => job.submitted_at,
    show: (job) => html`<${When} at=${job.submitted_at} />`,
  },
];

/** Every word must be in the job's name, owner, state, band or labels. */
export function matches(job, text) {
  if (!text) return true;
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
  const hay = [`${job.user}/${job.name}`, jobState(job)[0], words(bandOf(job.priority)), ...labels];
  const whole = hay.join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => whole.includes(word));
}

const STATES = [
  ["live", "Live"],
  ["pending", "Pending"],
  ["failed", "Failed"],
  ["all", "All"],
];

function stands(job, state) {
  if (state === "all") return true;
  if (state === "pending") return job.tasks.pending > 0;
  if (state === "failed") return job.tasks.failed > 0 || (job.state && job.state.dead === "failed");
  return isLive(job);
}

export default function Jobs() {
  const store = useStore(jobs);
  const [text, setText] = useQuery("q", "");
  const [state, setState] = useQuery("state", "live");
  const [sort, setSort] = useSort("name");
  const rows = useMemo(
    () => [...store.byKey.values()].filter((job) => stands(job, state) && matches(job, text)),
    [store.version, text, state],
  );
  const wait = !store.synced && store.byKey.size === 0;
  return html`<${Page} title="Jobs" live=${store}>
    <${Filter} value=${text} onInput=${setText} label="Filter by name, owner, state or label">
      <${Choice} label="State" value=${state} options=${STATES} onPick=${setState} />
      <button class="run-job" onClick=${runJob}>Run a job…</button>
      <span class="found" role="status">${plural(rows.length, "job")}</span>
    <//>
    <${Problem} error=${store.error} />
    ${wait && !store.error
      ? html`<${Wait} />`
      : html`<${Table} label="Jobs" columns=${COLUMNS} rows=${rows} sort=${sort} onSort=${setSort}
          keyOf=${(job) => `${job.user}/${job.name}`}
          hrefOf=${(job) => to("jobs", job.user, job.name)}
          empty=${store.byKey.size ? "No job is like that." : "No jobs yet. Run one: cell run FILE"} />`}
  <//>`;
}
