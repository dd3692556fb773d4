// The cell at a glance: what it has, what is promised, what is used, and every machine as a square.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { DOWN, DRAINING, MEASURES, OVER, SHORT, bandColours, css, find, gradient, paint } from "../heat.js";
import { get } from "../api.js";
import { events, overview, useRead, useStore } from "../live.js";
import { Card, Choice, Empty, Link, Meter, MeterKey, Page, Problem, Tally, Wait, go, to, useQuery } from "../parts.js";
import { count, plural } from "../units.js";
import { EventList } from "./job.js";

const DRAWN = "map-drawn";

function themeNow() {
  return document.documentElement.dataset.theme || "light";
}

/** Redraws when the theme turns or the window changes; the number says how often that was. */
function useScreen() {
  const [turns, turn] = useState(0);
  useEffect(() => {
    const again = () => turn((n) => n + 1);
    addEventListener("resize", again);
    const theme = new MutationObserver(again);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      removeEventListener("resize", again);
      theme.disconnect();
    };
  }, []);
  return turns;
}

function HeatMap({ measure, dimension }) {
  const screen = useScreen();
  const store = useStore(overview);
  const canvas = useRef(null);
  const plan = useRef(null);
  const [picked, pick] = useState(-1);
  useLayoutEffect(() => {
    plan.current = paint(canvas.current, store.machines, { measure, dimension, theme: themeNow() });
    // Once a page, for whoever measures how long it took to get here.
    if (store.sums && !performance.getEntriesByName(DRAWN).length) performance.mark(DRAWN);
    // Not as the pointer moves: the squares stay as they are.
  }, [store.version, measure, dimension, screen]);
  const over = (event) => {
    const box = canvas.current.getBoundingClientRect();
    pick(find(plan.current, event.clientX - box.left, event.clientY - box.top));
  };
  const open = () => {
    const slot = plan.current.order[picked];
    if (slot !== undefined) go(to("machines", store.machines.names[slot]));
  };
  const walk = (event) => {
    const { columns, order } = plan.current;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key === "Enter") open();
    else if (event.key === "Home") pick(0);
    else if (event.key === "End") pick(order.length - 1);
    else if (steps[event.key]) {
      pick(Math.max(0, Math.min(order.length - 1, (picked < 0 ? 0 : picked) + (picked < 0 ? 0 : steps[event.key]))));
    } else return;
    event.preventDefault();
  };
  return html`<div class="heat">
    <div class="grid">
      <canvas ref=${canvas} tabindex="0" role="application"
        aria-label="Map of machines: arrow keys walk, Enter opens the machine"
        onMouseMove=${over} onMouseLeave=${() => pick(-1)} onClick=${open}
        onKeyDown=${walk} onFocus=${() => picked < 0 && pick(0)} onBlur=${() => pick(-1)}></canvas>
      ${picked >= 0 && plan.current && html`<${Cursor} plan=${plan.current} at=${picked} />`}
    </div>
    <${Picked} store=${store} slot=${plan.current && plan.current.order[picked]} />
  </div>`;
}

function Cursor({ plan, at }) {
  const place = {
    left: `${(at % plan.columns) * plan.step}px`,
    top: `${Math.floor(at / plan.columns) * plan.step}px`,
    width: `${plan.step - plan.gap}px`,
    height: `${plan.step - plan.gap}px`,
  };
  return html`<i class="cursor" style=${place} aria-hidden="true"></i>`;
}

/** The machine under the pointer or the keyboard, in words. */
function Picked({ store, slot }) {
  const name = slot === undefined ? null : store.machines.names[slot];
  if (!name) return html`<p class="picked faint">Point at a machine, or walk with the arrow keys.</p>`;
  const of = (column) => store.machines.columns[column][slot];
  const bits = of("state");
  const said = [
    bits & DOWN && "down", bits & DRAINING && "draining", bits & OVER && "over-committed",
    bits & SHORT && "short, takes only production",
  ];
  const share = (n) => (n < 0 ? "unknown" : `${n} %`);
  const line = (d, title) =>
    `${title} ${share(of(`${d}_used`))} used, ${of(`${d}_reserved`)} % reserved, ` +
    `${of(`${d}_limit`)} % limit, ${of(`${d}_production`)} % production`;
  return html`<p class="picked" role="status">
    <strong>${name}</strong> ${said.filter(Boolean).map((word) => html`<em>${word}</em> `)}
    <span>${plural(of("tasks"), "task")}</span>
    <span>${line("cpu", "CPU")}</span> <span>${line("ram", "memory")}</span>
  </p>`;
}

function Scale({ measure }) {
  useScreen();
  const theme = themeNow();
  if (measure === "band") {
    const colours = bandColours(theme);
    const swatch = (name, text) => html`<span><i style=${{ background: css(colours[name]) }}></i>${text}</span>`;
    return html`<p class="scale">
      ${swatch("production", "production and monitoring")} ${swatch("batch", "batch and best effort")}
      ${swatch("empty", "empty")} <${Marks} /></p>`;
  }
  return html`<p class="scale"><span>0 %</span>
    <i class="ramp" style=${{ background: gradient(theme) }}></i><span>130 %</span>
    <${Marks} /></p>`;
}

/** What is drawn on a square, whatever its colour stands for. */
function Marks() {
  return html`<span><i class="drain"></i>draining</span><span><i class="over"></i>over-committed</span>
    <span><i class="down"></i>down</span>`;
}

function Sums({ sums }) {
  const meter = (d, title) => html`<${Meter} dimension=${d} title=${title}
    used=${sums.machines_measured ? sums.used[d] : null} reserved=${sums.reserved[d]}
    limit=${sums.limits[d]} capacity=${sums.capacity[d]} />`;
  const down = sums.machines_total - sums.machines_up;
  return html`<div class="tiles">
    <${Link} to=${to("machines")} class="tile"><b>${count(sums.machines_total)}</b> ${sums.machines_total === 1 ? "machine" : "machines"}
      <small>${[
        `${count(sums.machines_up)} up`,
        down && `${count(down)} down`,
        sums.machines_draining && `${count(sums.machines_draining)} draining`,
      ].filter(Boolean).join(", ")}</small><//>
    <${Link} to=${to("jobs")} class="tile"><b>${count(sums.jobs)}</b> ${sums.jobs === 1 ? "job" : "jobs"}
      <small>of ${plural(sums.users, "user")}</small><//>
    <div class="tile"><b>${count(sums.tasks.running)}</b> ${sums.tasks.running === 1 ? "task" : "tasks"} running
      <${Tally} tasks=${sums.tasks} label=${false} /></div>
    <${Link} to=${to("pending")} class="tile ${sums.tasks.pending ? "warn" : ""}">
      <b>${count(sums.tasks.pending)}</b> pending
      <small>${sums.tasks.pending ? "see why" : "nothing waits"}</small><//>
  </div>
  <${Card} title="Resources" aside="of the whole cell">
    ${meter("cpu", "CPU")} ${meter("ram", "Memory")} ${meter("disk", "Disk")}
    <${MeterKey} />
  <//>`;
}

/** Alarms that are shown; a cell whose machines are all silent has one for each of them. */
const ALARMS = 8;

/** What a person should look at, wherever in the cell; the master that answers asks its leader. */
function Alarms() {
  const { value } = useRead((signal) => get("/v1/alarms", signal), [], 5000);
  if (!value || (value.leader && !value.items.length)) return null;
  const more = value.items.length - ALARMS;
  return html`<div class="problem alarms" role="alert">
    ${!value.leader && html`<span><strong>No leader answers</strong> what it knows of machines is missing here</span>`}
    ${value.items.slice(0, ALARMS).map(({ message }) => html`<span key=${message}><strong>Alarm</strong> ${message}</span>`)}
    ${more > 0 && html`<span>and ${plural(more, "other")}</span>`}
  </div>`;
}

export default function Overview() {
  const store = useStore(overview);
  const recent = useStore(events);
  const [show, setMeasure] = useQuery("show", "reserved");
  const [of, setDimension] = useQuery("of", "cpu");
  // An address may have been written by hand.
  const measure = Object.hasOwn(MEASURES, show) ? show : "reserved";
  const dimension = of === "ram" ? "ram" : "cpu";
  const { sums } = store;
  if (!sums) {
    return html`<${Page} title="Overview" live=${store}>
      ${store.error ? html`<${Problem} error=${store.error} />` : html`<${Wait} />`}<//>`;
  }
  return html`<${Page} title="Overview" live=${store}>
    <${Alarms} />
    <${Sums} sums=${sums} />
    <${Card} title="Machines" kind="map">
      <div class="tools">
        <${Choice} label="Measure" value=${measure} options=${Object.entries(MEASURES)} onPick=${setMeasure} />
        <${Choice} label="Resource" value=${dimension} options=${[["cpu", "CPU"], ["ram", "Memory"]]}
          onPick=${setDimension} />
      </div>
      ${sums.machines_total
        ? html`<${HeatMap} measure=${measure} dimension=${dimension} /><${Scale} measure=${measure} />`
        : html`<${Empty}>No machine has joined yet: <code>cell token create --agent NAME</code><//>`}
    <//>
    <${Card} title="Happening now" aside="since this page was opened">
      <${EventList} items=${recent.items.slice(0, 12)} empty="Nothing has changed since." />
    <//>
  <//>`;
}
