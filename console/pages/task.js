// One task: where it is, what became of it, what it writes, what it uses, and how to get inside.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { at, get, watch } from "../api.js";
import { useRead } from "../live.js";
import { Pieces, STREAMS } from "../logs.js";
import { Badge, Card, Choice, Command, Facts, Link, Meter, MeterKey, Page, Problem, Wait, When, to, useQuery } from "../parts.js";
import { useEventsOf, useSeries } from "../past.js";
import { Exec } from "../terminal.js";
import { DIMENSIONS, amount, moment, taskWords, words } from "../units.js";
import { EventList, Usage } from "./job.js";
import { Explanation } from "./pending.js";

/** Attempts before the newest that output can be read from. */
const EARLIER = 3;

/** Where output can be read from: the newest attempt, or one before it. */
function beginnings(newest) {
  const before = Array.from({ length: Math.min(EARLIER, newest - 1) }, (_, back) => `${newest - 1 - back}`);
  return [["", `Attempt ${newest}`], ...before.map((number) => [number, `from ${number}`])];
}

/** Output as it is written; stays at the end unless the reader scrolled up. */
function Logs({ user, job, index, newest }) {
  const [stream, pick] = useQuery("stream", "all");
  const [since, begin] = useQuery("attempt", "");
  const [shown, set] = useState([]);
  const [state, tell] = useState(["wait", null]);
  const box = useRef(null);
  useEffect(() => {
    const held = new Pieces();
    set([]);
    let frame = 0;
    let attempt = null;
    const show = () => {
      frame = 0;
      set(held.shown());
    };
    const add = (from, more) => {
      held.add(from, more);
      if (!frame) frame = requestAnimationFrame(show);
    };
    const path = `/v1/watch/output/${[user, job, index].map(encodeURIComponent).join("/")}?stream=${stream}&parts=true${
      since && `&attempt=${encodeURIComponent(since)}`}`;
    const stop = watch(
      path,
      (kind, piece) => {
        if (kind === "end") return tell(["end", null]);
        if (!piece.parts) return undefined;
        const begins = attempt === null ? since : piece.attempt !== attempt;
        if (begins) add("", `${attempt === null ? "" : "\n"}── attempt ${piece.attempt} ──\n`);
        attempt = piece.attempt;
        for (const part of piece.parts) add(part.stream, part.text);
        return undefined;
      },
      (now, error) => tell([now, error]),
    );
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [user, job, index, stream, since]);
  const stick = useRef(true);
  const scrolled = () => {
    const el = box.current;
    stick.current = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
  };
  useEffect(() => {
    if (stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const said = { live: "live", lost: "not to be had", wait: "connecting", end: "ended" };
  return html`<${Card} title="Output" aside=${said[state[0]]}>
    <div class="tools">
      <${Choice} label="Stream" value=${stream} options=${STREAMS} onPick=${pick} />
      ${newest > 1 && html`<${Choice} label="From attempt" value=${since} options=${beginnings(newest)} onPick=${begin} />`}
    </div>
    ${state[1] && html`<${Problem} error=${state[1]} />`}
    <pre class="logs" ref=${box} onScroll=${scrolled} tabindex="0" aria-label="Output of the task">${
      shown.length ? shown : html`<span class="faint">Nothing written yet.</span>`
    }</pre>
  <//>`;
}

function Resources({ task }) {
  const asked = DIMENSIONS.filter(([d]) => task.limits[d] || (task.used && task.used[d]));
  return html`<${Card} title="Resources">
    ${asked.map(
      ([d, title]) => html`<${Meter} dimension=${d} title=${title} used=${task.used && task.used[d]}
        reserved=${task.reservation[d]} limit=${task.limits[d]} />`,
    )}
    ${task.limits_in_force && html`<p class="faint">Its limits are being changed; until its machine has
      done so it may use ${DIMENSIONS.filter(([d]) => task.limits_in_force[d] !== task.limits[d])
        .map(([d, title]) => `${amount(d, task.limits_in_force[d])} of ${title}`).join(", ")}.</p>`}
    <${MeterKey} />
  <//>`;
}

const NOTICES = {
  left_in_time: "warned, left within its notice",
  overrun: "warned, killed when its notice was over",
  not_given: "killed without notice",
};

/** Its fate: how the attempt that ended last did. */
function LastEnd({ end }) {
  const notice = end.notice ? `; ${NOTICES[end.notice] || words(end.notice)}` : "";
  return html`Attempt ${end.attempt} on <${Link} to=${to("machines", end.machine)}>${end.machine}<//>,${" "}
    <${When} at=${end.at} />: ${end.text}${notice}`;
}

/** How it stands, in a sentence. */
function fate(task) {
  const [word, detail] = taskWords(task);
  if (word === "running") {
    const well = task.health ? ` and is ${words(task.health)}` : "";
    return `Runs on ${task.machine} since ${moment(task.changed_at)}${well}.`;
  }
  if (word === "pending") return "Waits for a machine.";
  if (word === "failing") return `${detail.charAt(0).toUpperCase()}${detail.slice(1)}.`;
  return `${word.charAt(0).toUpperCase()}${word.slice(1)}${detail ? `: ${detail}` : ""}, ${moment(task.changed_at)}.`;
}

function Standing({ task }) {
  const crashed = task.crashed_on.map((c) => `${c.machine} (${c.crashes})`).join(", ");
  return html`<${Card} title="Where it stands">
    <p class="fate">${fate(task)}</p>
    <${Facts} rows=${[
      ["Machine", task.machine && html`<${Link} to=${to("machines", task.machine)}>${task.machine}<//>`],
      ["Attempt", task.attempt],
      ["Version", task.version],
      ["In alloc", task.alloc],
      ["Ports", task.ports.join(", ")],
      ["Devices", task.devices.map((grant) => `${grant.milli} of 1000 of the machine's number ${grant.device}`).join(", ")],
      ["Waits for", task.waits_for.join(", ")],
      ["Failures in a row", task.failures_in_row || null],
      ["Not before", task.not_before > Date.now() ? html`<${When} at=${task.not_before} />` : null],
      ["Last end", task.last_end && html`<${LastEnd} end=${task.last_end} />`],
      ["Crashed on", crashed],
      ["Changed", html`<${When} at=${task.changed_at} />`],
    ]} />
  <//>`;
}

function Inside({ name, path, runs }) {
  return html`<${Card} title="Get inside" kind="inside">
    <${Exec} name=${name} path=${path} runs=${runs} />
    <details><summary>From the command line</summary><${Command} text=${`cell exec -t ${name} -- sh`} /></details>
  <//>`;
}

export default function Task({ names: [user, job, index] }) {
  const name = `${user}/${job}/${index}`;
  const path = at("jobs", user, job, "tasks", index);
  const rows = { where: "user = ? and job = ? and object = ?", args: [user, job, name] };
  const history = useEventsOf((event) => event.object === name, rows, [name]);
  const read = useRead((signal) => get(path, signal), [name, history.turn], 5000);
  const task = read.value && read.value.item;
  const points = useSeries(name, { user, job, index: Number(index) }, read.value && [task]);
  const crumbs = [["Jobs", to("jobs")], [user, `${to("jobs")}?q=${encodeURIComponent(`${user}/`)}`], [job, to("jobs", user, job)]];
  if (!task) {
    return html`<${Page} title=${`Task ${index}`} crumbs=${crumbs}>
      ${read.error ? html`<${Problem} error=${read.error} />` : html`<${Wait} />`}<//>`;
  }
  const [word, detail, tone] = taskWords(task);
  return html`<${Page} title=${`Task ${index}`} crumbs=${crumbs}>
    <p class="lead"><${Badge} tone=${tone}>${word}<//> <span>${detail}</span></p>
    <${Problem} error=${read.error} />
    ${task.state === "pending" && html`<${Card} title="Why it waits"><${Explanation} user=${user} job=${job} index=${index} /><//>`}
    <div class="columns">
      <${Standing} task=${task} />
      <${Resources} task=${task} />
    </div>
    ${task.attempt > 0 && html`<${Logs} user=${user} job=${job} index=${index} newest=${task.attempt} />`}
    ${task.attempt > 0 && html`<${Inside} name=${name} path=${`${path}/exec`} runs=${task.state === "running"} />`}
    <${Usage} points=${points} known="It is on no machine." />
    <${Card} title="History" aside=${history.since ? `since ${moment(history.since)}` : ""}>
      <${Problem} error=${history.error} />
      <${EventList} items=${history.items} wait=${history.wait} empty="Nothing happened in what is kept." />
    <//>
  <//>`;
}
