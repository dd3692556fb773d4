// What waits, and why: the master's own explanation, with what would help.

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { at, get, post } from "../api.js";
import { jobs, useRead, useStore } from "../live.js";
import { Badge, Card, Command, Empty, Filter, Link, Page, Problem, Wait, When, to, useQuery } from "../parts.js";
import { amount, bandOf, count, plural, words } from "../units.js";
import { matches } from "./jobs.js";

function Reasons({ view }) {
  const rows = [...view.reasons].sort((a, b) => b.machines - a.machines);
  return html`<table class="reasons" aria-label="Machines by reason">
    <tbody>
      ${rows.map((reason) => html`<tr class=${reason.code === "fits" ? "good" : ""}>
        <td class="number">${count(reason.machines)}</td>
        <td><span class="mini wide"><i style=${{ width: `${(100 * reason.machines) / (view.machines_total || 1)}%` }}></i></span></td>
        <td>${reason.about}</td></tr>`)}
    </tbody>
    <tfoot><tr><td class="number">${count(view.machines_total)}</td><td></td><td>machines of the cell</td></tr></tfoot>
  </table>`;
}

/** Why one task waits. */
export function Explanation({ user, job, index }) {
  const path = `${at("jobs", user, job, "tasks", String(index))}/explain`;
  const read = useRead((signal) => get(path, signal), [path], 10000);
  const view = read.value && read.value.item;
  if (!view) return read.error ? html`<${Problem} error=${read.error} />` : html`<${Wait} />`;
  return html`<div class="explanation">
    ${view.obstacles.map((o) => html`<div class="problem"><strong>${o.message}</strong><span>${o.hint}</span></div>`)}
    <${Reasons} view=${view} />
    <div>
      <pre class="words">${view.text}</pre>
      <p class="faint">
        ${view.nearest ? html`Nearest is <${Link} to=${to("machines", view.nearest.machine)}>${view.nearest.machine}<//>,
          with ${plural(view.nearest.obstacles.length, "obstacle")}.` : ""}
        ${view.eta && view.eta.at > Date.now() ? html` Expected to start <${When} at=${view.eta.at} />, ${view.eta.confidence}.` : ""}
        ${view.not_before > Date.now() ? html` Tried again <${When} at=${view.not_before} />.` : ""}
        ${view.victims.length ? ` ${plural(view.victims.length, "task")} would have to make room${view.victims_allowed ? "" : ", and may not be made to"}.` : ""}</p>
      <${Command} text=${`cell explain ${user}/${job}/${index}`} />
    </div>
  </div>`;
}

function Waiting({ job, open }) {
  const [shown, show] = useState(open);
  const path = `${at("jobs", job.user, job.name)}/tasks?state=pending&limit=1`;
  const first = useRead((signal) => (shown ? get(path, signal) : null), [path, shown, job.tasks.pending]);
  const task = first.value && first.value.items[0];
  return html`<${Card} kind="waiting">
    <h2><button aria-expanded=${shown} onClick=${() => show(!shown)}>
        <i aria-hidden="true">${shown ? "▾" : "▸"}</i> ${job.user}/${job.name}</button>
      <small>${plural(job.tasks.pending, "task")} pending, priority ${job.priority} (${words(bandOf(job.priority))})</small>
      <${Link} to=${to("jobs", job.user, job.name)}>Open the job<//></h2>
    ${shown && first.error && html`<${Problem} error=${first.error} />`}
    ${shown && task && html`<${Explanation} user=${job.user} job=${job.name} index=${task.index} />`}
    ${shown && first.value && !task && html`<${Empty}>It waits no more.<//>`}
  <//>`;
}

/** Why no shape fits, in the words of the command line. */
function whyNothing(set, total) {
  if (!total) return "the cell has no machines";
  return set.machines ? "no machine has CPU and memory free" : "no machine takes such work now";
}

function Ladder({ set, total }) {
  const takes = set.machines === 1 || total === 1 ? "takes" : "take";
  const largest = set.largest.map(
    (one) => `${amount("cpu", one.limits.cpu)} with ${amount("ram", one.limits.ram)} on ${one.machine}`,
  );
  const head = html`<h3>${words(set.band)} <small>${count(set.machines)} of ${plural(total, "machine")} ${takes} such work</small></h3>`;
  if (!set.ladder.length) return html`<div>${head}<${Empty}>Nothing fits: ${whyNothing(set, total)}.<//></div>`;
  return html`<div>${head}
    <table class="shapes" aria-label="Shapes that fit ${words(set.band)} work">
      <thead><tr><th scope="col">A task of</th><th scope="col" class="number">Tasks</th><th scope="col" class="number">Machines</th><th></th></tr></thead>
      <tbody>${set.ladder.map((shape) => html`<tr>
        <td>${amount("cpu", shape.limits.cpu)}, ${amount("ram", shape.limits.ram)}</td>
        <td class="number">${count(shape.tasks)}</td><td class="number">${count(shape.machines)}</td>
        <td>${shape.easy && html`<${Badge} tone="good">easy<//>`}</td></tr>`)}</tbody>
    </table>
    <p class="faint">The largest is ${largest.join(", or ")}. Easy is what ${plural(set.easy_from, "machine")} or more would take.</p>
  </div>`;
}

/** What would not have to wait. */
function Fitting() {
  const [shown, show] = useState(false);
  const read = useRead(() => (shown ? post("/v1/shapes", {}) : null), [shown], 10000);
  const view = read.value && read.value.item;
  return html`<${Card} kind="waiting">
    <h2><button aria-expanded=${shown} onClick=${() => show(!shown)}>
        <i aria-hidden="true">${shown ? "▾" : "▸"}</i> What fits now</button>
      <small>shapes of task that find a place at once</small></h2>
    ${shown && read.error && html`<${Problem} error=${read.error} />`}
    ${shown && !view && !read.error && html`<${Wait} />`}
    ${shown && view && html`<div class="ladders">${view.sets.map(
      (set) => html`<${Ladder} key=${set.band} set=${set} total=${view.machines_total} />`)}</div>`}
    ${shown && view && html`<${Command} text="cell shapes" />`}
  <//>`;
}

export default function Pending() {
  const store = useStore(jobs);
  const [text, setText] = useQuery("q", "");
  const waiting = useMemo(() => {
    const found = [...store.byKey.values()].filter((job) => job.tasks.pending > 0 && matches(job, text));
    return found.sort((a, b) => b.priority - a.priority || a.submitted_at - b.submitted_at);
  }, [store.version, text]);
  const tasks = waiting.reduce((sum, job) => sum + job.tasks.pending, 0);
  return html`<${Page} title="Pending" live=${store}>
    <${Filter} value=${text} onInput=${setText} label="Filter by name, owner or label">
      <span class="found" role="status">${plural(tasks, "task")} of ${plural(waiting.length, "job")}</span>
    <//>
    <${Problem} error=${store.error} />
    <${Fitting} />
    ${!store.synced && !store.error && html`<${Wait} />`}
    ${store.synced && !waiting.length && html`<${Empty}>Nothing waits for a machine.<//>`}
    ${waiting.slice(0, 50).map((job, n) => html`<${Waiting} key=${`${job.user}/${job.name}`} job=${job} open=${n === 0} />`)}
    ${waiting.length > 50 && html`<p class="faint">${count(waiting.length - 50)} more jobs wait; filter to see them.</p>`}
  <//>`;
}
