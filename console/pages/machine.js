// One machine: what it has, what runs on it, and taking it out of work.

import { html } from "../vendor/htm-preact.js";
import { all, at, get, post } from "../api.js";
import { confirm, say } from "../dialog.js";
import { useRead } from "../live.js";
import { Badge, Card, Facts, Link, Meter, MeterKey, Page, Problem, Table, Wait, to, useSort } from "../parts.js";
import { useEventsOf } from "../past.js";
import { DIMENSIONS, bytes, count, moment, plural, words } from "../units.js";
import { EventList, TASKS } from "./job.js";

const COLUMNS = [
  {
    key: "name",
    title: "Task",
    of: (task) => task.name,
    show: (task) => html`<${Link} to=${to("jobs", ...task.name.split("/"))}><b>${task.name}</b><//>`,
  },
  ...TASKS.filter((column) => !["index", "machine"].includes(column.key)),
];

function Drain({ machine, path }) {
  const act = (start) =>
    confirm({
      what: start ? `Drain ${machine.name}?` : `Let ${machine.name} take work again?`,
      why: start
        ? `Its ${plural(machine.tasks, "task")} move to other machines as fast as their jobs' budgets allow, and nothing new is placed on it.`
        : "New tasks can be placed on it at once.",
      verb: start ? "Drain" : "Undrain",
      act: () => post(`${path}/${start ? "drain" : "undrain"}`),
      done: () => say(start ? `${machine.name} is draining.` : `${machine.name} takes work again.`),
    });
  const end = () =>
    confirm({
      what: `End everything on ${machine.name} now?`,
      why: `Its ${plural(machine.tasks, "task")} are killed without notice, whatever their jobs' budgets say, and start elsewhere.`,
      verb: "End now",
      act: () => post(`${path}/drain?within=0`),
      done: () => say(`Everything on ${machine.name} ends.`),
    });
  return machine.draining
    ? html`${machine.tasks > 0 && html`<button onClick=${end}>End now…</button>`}
        <button onClick=${() => act(false)}>Undrain…</button>`
    : html`<button onClick=${() => act(true)}>Drain…</button>`;
}

/** What keeps a task on a machine that drains, in the words of the command line. */
function DrainWait({ wait: { job, tasks, limit, down, next } }) {
  const who = html`<${Link} to=${to("jobs", job.user, job.job)}>${job.user}/${job.job}<//>`;
  const waits = `${plural(tasks, "task")} ${tasks === 1 ? "waits" : "wait"} for`;
  if (limit === "max_down") {
    return html`<li>${waits} <code>max_down</code> of ${who}: ${count(down)} ${down === 1 ? "is" : "are"} down.</li>`;
  }
  let then = "which lets fewer leave at once than an alloc holds";
  // A time that is past by our clock is no time to come.
  if (next) then = next > Date.now() ? `next at ${moment(next)}` : "next in a moment";
  return html`<li>${waits} the disruption limit of ${who}, ${then}.</li>`;
}

/** How far a drain has come. */
function Draining({ machine }) {
  if (!machine.draining) return null;
  const text = machine.tasks
    ? `${plural(machine.tasks, "task")} ${machine.tasks === 1 ? "is" : "are"} still here${
        machine.stopping ? `, ${count(machine.stopping)} on the way out` : ""}. Nothing new is placed on it.`
    : "Nothing runs here any more, and nothing new is placed on it.";
  const by = machine.drain_by && machine.tasks
    ? ` What is still here at ${moment(machine.drain_by)} ends then.`
    : "";
  return html`<${Card} title="Draining" kind="drain">
    <p>${text}${by}</p>
    <ul>${machine.drain_waits.map((wait) => html`<${DrainWait} wait=${wait} />`)}</ul>
  <//>`;
}

/** `{text: "x86_64"}` or `{integer: 3}` as the operator wrote it; a label is a text already. */
function plain(value) {
  return typeof value === "object" ? (value.text ?? value.integer) : value;
}

function About({ machine }) {
  const lines = (texts) => (texts.length ? html`<ul>${texts.map((text) => html`<li>${text}</li>`)}</ul>` : null);
  const pairs = (map) => lines(Object.entries(map || {}).map(([key, value]) => `${key}=${plain(value)}`));
  // A device that is gone keeps its place in the list; its model says what it was.
  const devices = (machine.spec.devices || []).map((device, at) =>
    device.kind === "(gone)"
      ? `${device.model}, gone`
      : `${device.kind} ${device.model}, ${1000 - (machine.devices_used[at] || 0)} of 1000 free`,
  );
  const named = machine.named.map((n) => {
    const name = typeof n.name === "string" ? n.name : n.name.name;
    return `${name}: ${n.available ?? "no end"} of ${n.capacity ?? "no end"}`;
  });
  const { spec } = machine;
  return html`<${Card} title="The machine">
    <${Facts} rows=${[
      ["Rack", spec.rack],
      ["Power domain", spec.power],
      ["Labels", pairs(spec.labels)],
      ["Attributes", pairs(spec.attributes)],
      ["Devices", lines(devices)],
      ["Named resources", lines(named)],
      ["Packages kept", machine.packages],
      ["Disk kept for logs", machine.retained_bytes ? bytes(machine.retained_bytes) : null],
      ["Life of the agent", machine.incarnation],
    ]} />
  <//>`;
}

/** Why the cell does not count on the machine. */
function Trouble({ trouble }) {
  if (!trouble) return null;
  return html`<${Card} title=${trouble.kind === "refused" ? "Its agent is refused" : "Nobody hears its agent"}>
    <p>Since ${moment(trouble.since)}: ${trouble.reason}.</p>
    <p>Next: ${trouble.next}.</p>
  <//>`;
}

export default function Machine({ names: [name] }) {
  const path = at("machines", name);
  const here = (event) => event.machine === name;
  const past = { where: "machine = ?", args: [name] };
  const history = useEventsOf(here, past, [name]);
  const read = useRead((signal) => get(path, signal), [name, history.turn], 5000);
  const tasks = useRead((signal) => all(`${path}/tasks`, 5000, signal), [name, history.turn], 5000);
  const [sort, setSort] = useSort("name");
  const machine = read.value && read.value.item;
  const crumbs = [["Machines", to("machines")]];
  if (!machine) {
    return html`<${Page} title=${name} crumbs=${crumbs}>
      ${read.error ? html`<${Problem} error=${read.error} />` : html`<${Wait} />`}<//>`;
  }
  const { capacity } = machine.spec;
  const rows = tasks.value ? tasks.value.items : [];
  return html`<${Page} title=${name} crumbs=${crumbs} actions=${html`<${Drain} machine=${machine} path=${path} />`}>
    <p class="lead">
      <${Badge} tone=${machine.status === "up" ? "good" : "bad"}>${machine.status}<//>
      ${machine.draining && html`<${Badge} tone="warn">draining<//>`}
      ${machine.over_committed && html`<${Badge} tone="bad">over-committed<//>`}
      ${machine.trouble && html`<${Badge} tone="bad">${machine.trouble.kind}<//>`}
      ${(machine.resource_pressure || []).map((s) => html`<${Badge} tone="warn">
        ${s.over ? "was short of" : "short of"} ${words(s.dimension)}, takes only production<//>`)}
      <span>${plural(machine.tasks, "task")}</span>
    </p>
    <${Trouble} trouble=${machine.trouble} />
    <${Draining} machine=${machine} />
    <${Problem} error=${read.error} />
    <${Card} title="Resources">
      ${DIMENSIONS.filter(([d]) => capacity[d]).map(
        ([d, title]) => html`<${Meter} dimension=${d} title=${title} used=${machine.used && machine.used[d]}
          reserved=${machine.reserved[d]} limit=${machine.limits[d]} capacity=${capacity[d]} />`,
      )}
      <${MeterKey} />
    <//>
    <${Card} title="What runs here" aside=${plural(rows.length, "task")}>
      <${Problem} error=${tasks.error} />
      <${Table} label="Tasks on the machine" columns=${COLUMNS} rows=${rows} sort=${sort} onSort=${setSort}
        keyOf=${(task) => `${task.name}.${task.attempt}`} hrefOf=${(task) => to("jobs", ...task.name.split("/"))}
        empty=${tasks.wait ? "Loading…" : "Nothing runs here."} />
    <//>
    <div class="columns">
      <${Card} title="Events" aside=${history.since ? `since ${moment(history.since)}` : ""}>
        <${Problem} error=${history.error} />
        <${EventList} items=${history.items} wait=${history.wait} empty="Nothing happened in what is kept." />
      <//>
      <${About} machine=${machine} />
    </div>
  <//>`;
}
