// Numbers and states in words.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  let value = n;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${trim(value)} ${UNITS[unit]}`;
}

/** Milli-cores as cores. */
function cores(milli) {
  if (milli === null || milli === undefined) return "–";
  return trim(milli / 1000);
}

function trim(value) {
  if (value >= 100) return String(Math.round(value));
  return String(Number(value.toFixed(value >= 10 ? 1 : value >= 0.1 ? 2 : 3)));
}

export function count(n) {
  return (n || 0).toLocaleString("en");
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function amount(dimension, n) {
  if (dimension === "cpu") return `${cores(n)} ${n === 1000 ? "core" : "cores"}`;
  return dimension === "disk_rate" ? `${bytes(n)}/s` : bytes(n);
}

/** An amount among others of its kind, one of which names the unit. */
export function bare(dimension, n) {
  return dimension === "cpu" ? cores(n) : amount(dimension, n);
}

export const DIMENSIONS = [
  ["cpu", "CPU"],
  ["ram", "Memory"],
  ["disk", "Disk"],
  ["disk_rate", "Disk rate"],
];

/** How long ago, or how long until. */
export function ago(ms, now = Date.now()) {
  if (!ms) return "–";
  const gap = now - ms;
  return gap >= 0 ? `${span(gap)} ago` : `in ${span(-gap)}`;
}

export function span(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 48) return `${hours} h`;
  return `${Math.round(hours / 24)} d`;
}

/** Date and time, in the reader's zone. */
export function moment(ms) {
  if (!ms) return "–";
  const date = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The time of today, the day of others: short enough for a list. */
export function stamp(ms, now = Date.now()) {
  const text = moment(ms);
  return text.slice(0, 10) === moment(now).slice(0, 10) ? text.slice(11) : text.slice(5, 16);
}

export const BANDS = ["best_effort", "batch", "production", "monitoring"];

export function bandOf(priority) {
  return BANDS[Math.min(3, Math.floor(priority / 100))];
}

export function words(code) {
  return String(code).replaceAll("_", " ").replaceAll("-", " ");
}

/** `{stopping: "drained"}` and its like as [word, detail, tone]; the words are the command line's. */
function taskState({ state, needed, last_end: end }) {
  if (typeof state === "string") {
    const tones = { running: "good", pending: "warn", assigned: "info", deferred: "calm" };
    return [state === "assigned" ? "starting" : state, "", tones[state] || "calm"];
  }
  if (state && state.stopping) {
    return ["stopping", state.stopping === "killed" ? "by request" : words(state.stopping), "warn"];
  }
  const fate = state && state.dead;
  if (fate === "finished") return ["finished", "", "calm"];
  if (fate === "killed") return ["stopped", "", "calm"];
  if (fate === "dependency_failed") {
    const job = needed ? `${needed}, which it needed,` : "a job it needed";
    return ["never ran", `${job} did not succeed`, "bad"];
  }
  if (fate && fate.failed) return ["failed", end ? ended(end) : exit(fate.failed), "bad"];
  return [words(JSON.stringify(state)), "", "calm"];
}

function exit(how) {
  if (how && how.code !== undefined) return `exit code ${how.code}`;
  if (how && how.signal !== undefined) return `signal ${how.signal}`;
  return words(typeof how === "object" ? Object.keys(how)[0] : how);
}

/** How an attempt ended, shorter than the event says it. */
export function ended({ why, text }) {
  const how = why && why.exited;
  return how && (how.code !== undefined || how.signal !== undefined) ? exit(how) : text;
}

function times(n) {
  return ["", "once", "twice"][n] || `${count(n)} times`;
}

/** A task that waits for its next try after failing is not just pending. */
export function taskWords(task, now = Date.now()) {
  const [word, detail, tone] = taskState(task);
  if (task.state === "pending" && task.failures_in_row > 0) {
    const why = task.last_end ? `, ${ended(task.last_end)}` : "";
    const again = task.not_before > now ? `, next try ${ago(task.not_before, now)}` : "";
    return ["failing", `failed ${times(task.failures_in_row)}${why}${again}`, "bad"];
  }
  if (task.state === "running" && !task.healthy) return ["unhealthy", "", "bad"];
  if (task.health === "healthy") return [word, "healthy", tone];
  if (task.health === "not_yet_healthy" && task.used) {
    return [word, "runs, has not passed its health check yet", tone];
  }
  return [word, detail, tone];
}

const OUTCOMES = {
  succeeded: ["succeeded", "calm"],
  failed: ["failed", "bad"],
  killed: ["stopped", "calm"],
  dependency_failed: ["never ran", "bad"],
};

export function jobState(job) {
  const state = job.state;
  if (typeof state === "string") {
    if (state === "active" && job.tasks.pending > 0) return ["active", "warn"];
    return [state, state === "active" ? "good" : state === "stopping" ? "warn" : "calm"];
  }
  return OUTCOMES[state && state.dead] || [words(state && state.dead), "calm"];
}

export function isLive(job) {
  return typeof job.state === "string";
}

/** Counts by their names in the API, how they look, and the word for them. */
export const TASK_WORDS = [
  ["running", "good", "running"],
  ["assigned", "info", "starting"],
  ["pending", "warn", "pending"],
  ["stopping", "stop", "stopping"],
  ["failed", "bad", "failed"],
  ["finished", "done", "finished"],
  ["killed", "gone", "stopped"],
  ["deferred", "calm", "deferred"],
];

/** `3 running, 1 pending`. */
export function tally(tasks) {
  const parts = TASK_WORDS.filter(([name]) => tasks[name] > 0);
  return parts.map(([name, , word]) => `${count(tasks[name])} ${word}`).join(", ") || "no tasks";
}

export function total(tasks) {
  return TASK_WORDS.reduce((sum, [name]) => sum + (tasks[name] || 0), 0);
}
