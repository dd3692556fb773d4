// One job: its tasks, an update in progress, what happened, what it uses against what it may.

import { html, useRef } from "../vendor/htm-preact.js";
import { all, at, del, get, post } from "../api.js";
import { Chart } from "../chart.js";
import { confirm, say } from "../dialog.js";
import { useRead } from "../live.js";
import { JobLogs } from "../logs.js";
import { Badge, Card, Choice, Empty, Facts, Link, Page, Problem, Table, Tally, Wait, When, to, useQuery, useSort } from "../parts.js";
import { useEventsOf, useSeries } from "../past.js";
import { Versions } from "../versions.js";
import { amount, bandOf, count, isLive, jobState, moment, plural, stamp, taskWords, words } from "../units.js";

/** Where an event leads, if its object has a page. */
function place(event) {
  const names = event.object.split("/");
  if (event.kind.machine) return to("machines", event.object);
  return (event.kind.task || event.kind.job) && names.length > 1 ? to("jobs", ...names) : null;
}

const TONES = {
  failed: "bad", failed_for_good: "bad", gave_up: "bad", lost: "bad", down: "bad", never_ran: "bad",
  started: "good", up: "good", finished: "good", succeeded: "good",
  evicted: "warn", stopping: "warn", drain_started: "warn", over_committed: "warn", pressure_reported: "warn",
};

function toneOf(event) {
  const change = Object.values(event.kind)[0].change;
  const word = typeof change === "string" ? change : change && Object.keys(change)[0];
  return TONES[String(word).replaceAll("-", "_")] || "calm";
}

export function EventList({ items, empty, wait, most = 200 }) {
  if (!items.length) return wait ? html`<${Wait} />` : html`<${Empty}>${empty}<//>`;
  return html`<ol class="events">
    ${items.slice(0, most).map((event) => {
      const href = place(event);
      return html`<li key=${event.cursor} class=${toneOf(event)}>
        <time title=${moment(event.at)}>${stamp(event.at)}</time>
        <span>${href ? html`<${Link} to=${href}>${event.object}<//>` : event.object} ${event.happened}</span>
      </li>`;
    })}
  </ol>`;
}

export const TASKS = [
  {
    key: "index",
    title: "Task",
    of: (task) => task.index,
    show: (task) => html`<${Link} to=${to("jobs", ...task.name.split("/"))}><b>${task.index}</b><//>`,
  },
  {
    key: "state",
    title: "State",
    of: (task) => taskWords(task)[0],
    show: (task) => {
      const [word, detail, tone] = taskWords(task);
      return html`<${Badge} tone=${tone}>${word}<//> <small>${detail}</small>`;
    },
  },
  {
    key: "machine",
    title: "Machine",
    of: (task) => task.machine || "",
    show: (task) => (task.machine ? html`<${Link} to=${to("machines", task.machine)}>${task.machine}<//>` : "–"),
  },
  { key: "attempt", title: "Attempt", number: true, of: (task) => task.attempt },
  { key: "version", title: "Version", number: true, of: (task) => task.version },
  ...["cpu", "ram"].map((d) => ({
    key: d,
    title: d === "cpu" ? "CPU used / limit" : "Memory used / limit",
    number: true,
    of: (task) => (task.used ? task.used[d] : -1),
    show: (task) => html`<span class="pair">${task.used ? amount(d, task.used[d]) : "–"}${" "}
      <small>/ ${amount(d, task.limits[d])}</small></span>`,
  })),
  {
    key: "since",
    title: "Since",
    number: true,
    of: (task) => task.changed_at,
    show: (task) => html`<${When} at=${task.changed_at} />`,
  },
];

function Updating({ job, tasks, path }) {
  const { update } = job;
  const goal = update.to;
  const done = tasks.filter((task) => task.version === goal).length;
  const act = (verb, what, why, path2) =>
    confirm({ what, why, verb, act: () => post(path2), done: () => say(`${verb}: asked for.`) });
  const under = job.update_complete ? "Update complete, not closed yet"
    : update.canaries ? "Canaries try a new version" : "Update in progress";
  const back = update.rolled_back ? "Update rolled back: too many tasks failed" : "Update being undone";
  const { promote_after: span } = job.spec.update || {};
  const well = job.canaries_well_since;
  return html`<${Card} title=${update.undoing ? back : under} kind="update">
    <p>From version ${update.from} to ${update.to}, opened <${When} at=${update.opened_at} />.${" "}
      ${count(done)} of ${plural(tasks.length, "task")} at version ${goal}, ${plural(update.disruptions, "disruption")} so far${
        update.skipped.length ? `, ${plural(update.skipped.length, "task")} skipped` : ""
      }.</p>
    ${update.canaries > 0 &&
    html`<p>${plural(update.canaries, "task")} tr${update.canaries === 1 ? "ies" : "y"} it before the others get it${
      !well ? "." : span ? html`: well, and promoted <${When} at=${well + span} />.` : ": well, and to be promoted by hand."}</p>`}
    <progress max=${tasks.length || 1} value=${done} aria-label="Tasks at the new version"></progress>
    <p class="buttons">
      ${update.canaries > 0 &&
      html`<button onClick=${() => act("Promote version", `Promote version ${goal} of ${job.user}/${job.name}?`,
        "All tasks get it.", `${path}/promote`)}>Promote…</button>`}
      ${update.skipped.length > 0 &&
      html`<button onClick=${() => act("Finish update", `Finish the update of ${job.user}/${job.name}?`,
        `${plural(update.skipped.length, "task")} that it skipped are updated too, however many disruptions that takes.`,
        `${path}/finish`)}>Finish…</button>`}
      ${!update.undoing &&
      html`<button onClick=${() => act("Undo update", `Undo the update of ${job.user}/${job.name}?`,
        `All tasks go back to version ${update.from}; some may restart or move.`, `${path}/undo`)}>Undo…</button>`}
      <button onClick=${() => act("Close update", `Close the update of ${job.user}/${job.name}?`,
        "It can no longer be undone after that.", `${path}/close`)}>Close…</button>
    </p>
  <//>`;
}

/** What the last update skipped, once it is closed. */
function Skipped({ job, path }) {
  const key = `${job.user}/${job.name}`;
  const finish = () =>
    confirm({
      what: `Finish the update of ${key}?`,
      why: `${plural(job.outdated, "task")} that it skipped are updated too, however many disruptions that takes.`,
      verb: "Finish update",
      act: () => post(`${path}/finish`),
      done: () => say("Finish update: asked for."),
    });
  return html`<${Card} title="Tasks were skipped" kind="update">
    <p>${plural(job.outdated, "task")} run an older version than ${job.version}: the update might disrupt no more.</p>
    <p class="buttons"><button onClick=${finish}>Finish…</button></p>
  <//>`;
}

function Spec({ job }) {
  const { spec } = job;
  const { limits } = spec.task;
  const labels = Object.entries(spec.labels || {}).map(([key, value]) => `${key}=${value}`);
  return html`<${Card} title="What it asks for">
    <${Facts} rows=${[
      ["Tasks", job.daemon
        ? `${count(job.tasks.running)} of ${count(job.daemon.matching)} machines`
        : count(spec.count)],
      ["Priority", `${spec.priority}, ${words(bandOf(spec.priority))}`],
      ["Limits a task", `${amount("cpu", limits.cpu)}, ${amount("ram", limits.ram)}${limits.disk ? `, ${amount("disk", limits.disk)} disk` : ""}`],
      ["Command", job.redacted ? "for its owner and users with read_specs"
        : (spec.task.command || []).length ? html`<code>${spec.task.command.join(" ")}</code>` : null],
      ["Labels", labels.join(", ")],
      ["Restarting", job.restarting ? `${plural(job.restarting, "task")} still to be restarted` : null],
      ["Starts after", job.waits_for.map((key) => `${key.user}/${key.job}`).join(", ")],
      ["Kind", spec.kind === "tasks" ? null : words(spec.kind)],
      ["Submitted", html`<${When} at=${job.submitted_at} />`],
      ["Ended", job.ended_at ? html`<${When} at=${job.ended_at} />` : null],
      ["Version", job.version],
    ]} />
    <details><summary>${job.redacted ? "Specification, without what it runs" : "Whole specification"}</summary><pre>${JSON.stringify(spec, null, 2)}</pre></details>
  <//>`;
}

/** The name of a number that tasks tell is left as they write it. */
function ruleWords(rule) {
  return rule.startsWith("metric ") ? rule : words(rule);
}

/** One number of the target, as tasks told it last. */
function told(number) {
  const each = `${number.per_task / 1000} a task`;
  const sum = number.by ? `${number.told / 1000}` : "not told";
  return `${sum}, by ${number.by} of ${plural(number.of, "task")}, for ${each}`;
}

/** How the cell chooses the size, and what it decided of late. */
function Scaling({ path, job, events }) {
  const scale = useRead((signal) => get(`${path}/scale`, signal), [path, job.version, events.length], 60_000);
  const view = scale.value && scale.value.item;
  const decisions = events.filter((event) => {
    const kind = event.kind.component && event.kind.component.scaling;
    return kind && kind.change.measured === undefined;
  });
  if (!view) return scale.error ? html`<${Problem} error=${scale.error} />` : null;
  const most = Math.max(1000 * view.max, ...view.recent.map((point) => point.need));
  return html`<${Card} title="Scaling" aside=${view.mode}>
    <${Facts} rows=${[
      ["Tasks", `${count(view.now)} of ${count(view.min)} to ${count(view.max)}`],
      ["Wanted", `${plural(view.want, "task")}${view.rule ? `, by ${ruleWords(view.rule)}` : ""}`],
      ["Held back by", view.vetoed_by.map(words).join(", ") || null],
      ["Needed", view.need === null ? null : `${(view.need / 1000).toFixed(1)} tasks`],
      ...view.numbers.map((number) => [number.series.name, told(number)]),
      ["Refused", view.refused ? plural(view.refused, "reading") : null],
    ]} />
    ${view.recent.length > 1 && html`<svg class="need" viewBox="0 0 60 20" width="100%" height="60"
      preserveAspectRatio="none" role="img" aria-label="Tasks needed in the last hour">
      <polyline fill="none" stroke="currentColor" stroke-width="0.5" points=${view.recent
        .map((point) => `${60 - (view.recent[view.recent.length - 1].minute - point.minute)},${20 - (20 * point.need) / most}`)
        .join(" ")} /></svg>`}
    <${EventList} items=${decisions} empty="Nothing was decided in what is kept." />
  <//>`;
}

export function Usage({ points, known }) {
  return html`<${Card} title="Usage" aside="against reservation and limit">
    ${points.length
      ? html`<div class="charts"><${Chart} points=${points} dimension="cpu" title="CPU" />
          <${Chart} points=${points} dimension="ram" title="Memory" /></div>`
      : html`<${Empty}>${known}<//>`}
  <//>`;
}

const SHOWN = [["", "All"], ["pending", "Pending"], ["running", "Running"], ["dead", "Ended"]];

export default function Job({ names: [user, name] }) {
  const key = `${user}/${name}`;
  const path = at("jobs", user, name);
  const mine = (event) => event.object === key || event.object.startsWith(`${key}/`);
  const rows = { where: "user = ? and job = ?", args: [user, name] };
  const history = useEventsOf(mine, rows, [key]);
  const job = useRead((signal) => get(path, signal), [key, history.turn]);
  // A job of thousands of tasks is not read again every few seconds for the sake of a chart.
  const many = useRef(0);
  const pace = () => (many.current > 1000 ? 60_000 : 5000);
  const tasks = useRead((signal) => all(`${path}/tasks`, 10000, signal), [key, history.turn], pace);
  const [which, pick] = useQuery("tasks", "");
  const [sort, setSort] = useSort("index");
  const list = tasks.value ? tasks.value.items : [];
  many.current = list.length;
  const points = useSeries(key, { user, job: name }, tasks.value && list);
  const crumbs = [["Jobs", to("jobs")], [user, `${to("jobs")}?q=${encodeURIComponent(`${user}/`)}`]];
  const view = job.value && job.value.item;
  if (!view) {
    return html`<${Page} title=${name} crumbs=${crumbs}>
      ${job.error ? html`<${Problem} error=${job.error} />` : html`<${Wait} />`}<//>`;
  }
  const [word, tone] = jobState(view);
  const stop = () =>
    confirm({
      what: `Stop ${key}?`,
      why: `Its ${plural(list.length, "task")} are told to end. A stopped job does not start again; run it anew instead.`,
      verb: "Stop the job",
      danger: true,
      act: () => del(`${path}?expect=${view.version}`),
      done: () => say(`${key} is stopping.`),
    });
  const restart = () =>
    confirm({
      what: `Restart ${key}?`,
      why: "The tasks that run restart where they are, as many at a time as its disruption budget allows.",
      verb: "Restart the job",
      act: () => post(`${path}/restart`),
      done: () => say(`${key} restarts.`),
    });
  const shown = list.filter((task) => !which || task.state === which || task.state[which]);
  return html`<${Page} title=${name} crumbs=${crumbs}
    actions=${isLive(view) && view.state !== "stopping" && html`
      ${view.spec.kind === "tasks" && html`<button onClick=${restart}>Restart…</button>`}
      <button class="danger" onClick=${stop}>Stop…</button>`}>
    <p class="lead"><${Badge} tone=${tone}>${word}<//> <${Tally} tasks=${view.tasks} />
      ${view.tasks.pending > 0 && html` <${Link} to=${`${to("pending")}?q=${encodeURIComponent(key)}`}>Why pending?<//>`}</p>
    ${job.error && html`<${Problem} error=${job.error} />`}
    ${view.update && html`<${Updating} job=${view} tasks=${list} path=${path} />`}
    ${!view.update && view.outdated > 0 && html`<${Skipped} job=${view} path=${path} />`}
    <${Usage} points=${points} known="No task is on a machine." />
    ${view.spec.scale && isLive(view) && html`<${Scaling} path=${path} job=${view} events=${history.items} />`}
    <${Card} title="Tasks" aside=${plural(shown.length, "task")}>
      <${Choice} label="Tasks" value=${which} options=${SHOWN} onPick=${pick} />
      <${Problem} error=${tasks.error} />
      <${Table} label="Tasks" columns=${TASKS} rows=${shown} sort=${sort} onSort=${setSort}
        keyOf=${(task) => task.index} hrefOf=${(task) => to("jobs", user, name, String(task.index))}
        empty=${tasks.wait ? "Loading…" : "No task is like that."} />
    <//>
    ${list.some((task) => task.attempt > 0) && html`<${JobLogs} key=${key} user=${user} job=${name} tasks=${list} />`}
    <div class="columns">
      <${Card} title="Events" aside=${history.since ? `since ${moment(history.since)}` : ""}>
        <${Problem} error=${history.error} />
        <${EventList} items=${history.items} wait=${history.wait} empty="Nothing happened in what is kept." />
      <//>
      <div>
        <${Versions} job=${view} path=${path} turn=${history.turn} />
        <${Spec} job=${view} />
      </div>
    </div>
  <//>`;
}
