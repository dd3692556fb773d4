// What was before the page was opened: events from the feed, usage from the history. Both reach
// back only so far, and pages say how far.

import { useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { get, post } from "./api.js";
import { events, useRead, useStore } from "./live.js";

export async function sql(query, args = []) {
  return post("/v1/sql", args.length ? { query, args } : { query });
}

/** Whether the master answers SQL; asked once a tab, of its own description. */
let asked = null;
export function hasSql() {
  asked = asked || get("/v1/openapi.json").then((document) => "/v1/sql" in document.paths);
  return asked;
}

const EVENTS = `select time, log_index, position, kind, object, event,
  substr(event_words(object, event, machine, reason, exit_class, exit_code, detail), length(object) + 2)
  from events where WHICH order by log_index desc, position desc limit 300`;

/** A row of the history in the shape of the feed. */
function event([at, index, position, kind, object, change, happened]) {
  return { cursor: `${index}-${position}`, at, object, happened, kind: { [kind]: { change } } };
}

async function fromHistory({ where, args }) {
  const answer = await sql(EVENTS.replace("WHICH", where), args);
  return { items: answer.rows.map(event), since: answer.reaches_back_to };
}

/** Entries of the log that are looked through where there is no history, and most pages of them. */
const ENTRIES = 5000;
const PAGES = 12;

async function fromFeed(match, signal) {
  const head = await get("/v1/events?limit=1", signal);
  let after = Math.max(0, head.index - ENTRIES);
  if (head.oldest) after = Math.max(after, head.oldest - 1);
  let found = [];
  let since = null;
  for (let page = 0; page < PAGES; page += 1) {
    const mark = page === 0 && after === 0 ? "" : `&after=${encodeURIComponent(after)}`;
    const { items, next } = await get(`/v1/events?limit=1000${mark}`, signal);
    if (since === null && items.length) since = items[0].at;
    found = found.concat(items.filter(match));
    if (items.length < 1000) break;
    after = next;
  }
  return { items: found.reverse(), since };
}

/** Past events, newest first, and the time they reach back to. */
async function pastEvents(match, rows, signal) {
  if (await hasSql()) {
    try {
      return await fromHistory(rows);
    } catch (error) {
      // A replica that keeps no history still has the feed.
      if (error.code !== "not-ready") throw error;
    }
  }
  return fromFeed(match, signal);
}

/**
 * Events of an object, past and live, newest first: `match` picks them from the feed, `rows` (a
 * condition and its values) from the history. `turn` changes when something happened.
 */
export function useEventsOf(match, rows, deps) {
  const live = useStore(events);
  const past = useRead((signal) => pastEvents(match, rows, signal), deps);
  const fresh = useMemo(() => live.items.filter(match), [live.version, ...deps]);
  const items = useMemo(() => {
    const seen = new Set(fresh.map((event) => event.cursor));
    const old = past.value ? past.value.items.filter((event) => !seen.has(event.cursor)) : [];
    return [...fresh, ...old];
  }, [fresh, past.value]);
  const turn = useTurn(fresh.length ? fresh[0].cursor : "");
  return { items, since: past.value && past.value.since, error: past.error, wait: past.wait, turn };
}

/** Follows `key`, but not faster than a few times a second. */
function useTurn(key) {
  const [held, set] = useState(key);
  const timer = useRef(0);
  useEffect(() => {
    if (key === held || timer.current) return;
    timer.current = setTimeout(() => {
      timer.current = 0;
      set(key);
    }, 250);
  }, [key]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return held;
}

/*
 * What was used and held in the middle of each minute: windows last up to five minutes, are cut
 * about full ones, and begin and end with each task. Averages over some stretch would sink wherever
 * a window covers a part of it, and begin before the first window did.
 */
const HISTORY = `with later(minutes) as (values (0), (1), (2), (3), (4), (5))
  select (time + 29999) / 60000 * 60000 + 30000 + minutes * 60000 as moment,
    sum(cpu_avg), sum(ram_avg), sum(cpu_reserved), sum(ram_reserved), sum(cpu_limit), sum(ram_limit)
  from usage, later
  where user = ? and job = ? WHICH and time > ? and moment < time + millis
  group by moment order by moment limit 500`;

/** Usage of the last hours from the history, oldest first; nothing where there is none. */
async function pastUsage({ user, job, index }) {
  const since = Date.now() - 6 * 3600_000;
  const one = index === undefined ? [] : [index];
  const query = HISTORY.replace("WHICH", one.length ? "and task_index = ?" : "");
  try {
    if (!(await hasSql())) return [];
    const { rows } = await sql(query, [user, job, ...one, since]);
    return rows.map(([at, cpu, ram, cr, rr, cl, rl]) => ({
      at,
      used: { cpu, ram },
      reserved: { cpu: cr, ram: rr },
      limit: { cpu: cl, ram: rl },
    }));
  } catch {
    // No history, or none for this reader: the chart begins now.
    return [];
  }
}

function sum(tasks, of) {
  const out = { cpu: 0, ram: 0, disk: 0, disk_rate: 0 };
  let any = false;
  for (const task of tasks) {
    const value = of(task);
    if (!value) continue;
    any = true;
    for (const key of Object.keys(out)) out[key] += value[key] || 0;
  }
  return any ? out : null;
}

const kept = new Map();

/** A line of usage that grows with each new reading of `tasks`. */
export function useSeries(key, of, tasks) {
  const [, turn] = useState(0);
  const line = kept.get(key) || { past: [], points: [] };
  useEffect(() => {
    if (kept.has(key)) return;
    kept.set(key, line);
    pastUsage(of).then((past) => {
      line.past = past;
      turn((n) => n + 1);
    });
  }, [key]);
  useEffect(() => {
    const held = (tasks || []).filter((task) => task.machine);
    if (!held.length) return;
    line.points.push({
      at: Date.now(),
      used: sum(held, (task) => task.used),
      reserved: sum(held, (task) => task.reservation),
      limit: sum(held, (task) => task.limits),
    });
    if (line.points.length > 720) line.points.shift();
    turn((n) => n + 1);
  }, [tasks]);
  const first = line.points.length ? line.points[0].at : Infinity;
  return [...line.past.filter((point) => point.at < first), ...line.points];
}
