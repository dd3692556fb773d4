// Output of tasks on a page: of one as it is written, of a job line by line with search and download.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { at, get } from "./api.js";
import { Card, Choice, Problem, useQuery } from "./parts.js";
import { stamp } from "./units.js";

/** Characters of one task that are kept. */
const MOST = 400_000;
/** Tasks of a job that are read, lines that are kept of it, and lines that are drawn. */
const MOST_TASKS = 20;
const MOST_LINES = 20_000;
const MOST_SHOWN = 1000;
/** Lines of each task to begin with. */
const FIRST = 200;
/** Time between two looks, in milliseconds. */
const PAUSE = 3000;

export const STREAMS = [["all", "both"], ["stdout", "stdout"], ["stderr", "stderr"]];

/** Output of one task as it is written: pieces of text, each of one stream. */
export class Pieces {
  constructor() {
    this.list = [];
    this.length = 0;
  }

  add(stream, text) {
    const last = this.list.at(-1);
    // Not changed in place: what is drawn is compared with what was.
    if (last && last.stream === stream) this.list[this.list.length - 1] = { stream, text: last.text + text };
    else this.list.push({ stream, text });
    this.length += text.length;
    while (this.length > MOST) {
      const over = this.length - MOST;
      const [first] = this.list;
      if (first.text.length <= over) this.list.shift();
      else this.list[0] = { stream: first.stream, text: first.text.slice(over) };
      this.length -= Math.min(over, first.text.length);
    }
  }

  shown() {
    return this.list.map(({ stream, text }) => (stream === "stderr" ? html`<span class="err">${text}</span>` : text));
  }
}

/** Lines of several tasks in the order of time. A line without a time stays behind the one above it. */
export class Lines {
  constructor() {
    this.list = [];
    this.open = new Map();
    this.last = new Map();
  }

  add(task, parts) {
    for (const { stream, at: when, text } of parts) {
      const key = `${task} ${stream}`;
      const pieces = text.split("\n");
      pieces.forEach((piece, nth) => {
        const held = this.open.get(key);
        const line = held ? { ...held, text: held.text + piece } : { task, stream, at: this.time(task, when), text: piece };
        if (nth + 1 < pieces.length) {
          this.list.push(line);
          this.open.delete(key);
        } else if (line.text) this.open.set(key, line);
      });
    }
    // A stable sort: what has the same time stays as it came.
    this.list.sort((one, other) => one.at - other.at);
    this.list.splice(0, this.list.length - MOST_LINES);
  }

  time(task, when) {
    const at = Math.max(this.last.get(task) || 0, when || 0);
    this.last.set(task, at);
    return at;
  }
}

/** Reads what tasks wrote since the look before. */
class Reader {
  constructor(user, job, stream) {
    this.path = (index) => at("jobs", user, job, "tasks", `${index}`, "output");
    this.stream = stream;
    this.lines = new Lines();
    this.places = new Map();
  }

  async look(tasks, signal) {
    await Promise.all(tasks.map((task) => this.read(task, signal)));
  }

  async read({ index, attempt }, signal) {
    let place = this.places.get(index);
    if (place && place.ended && place.attempt < attempt) place = { attempt: place.attempt + 1, from: "0-0" };
    if (place && place.ended) return;
    const query = new URLSearchParams({ stream: this.stream, parts: "true" });
    if (place) query.set("attempt", place.attempt);
    if (place) query.set("from", place.from);
    else query.set("lines", FIRST);
    const piece = await get(`${this.path(index)}?${query}`, signal);
    this.lines.add(index, piece.parts || []);
    this.places.set(index, { attempt: piece.attempt, from: piece.next, ended: piece.ended });
  }
}

function lineText({ at: when, task, stream, text }) {
  const mark = stream === "stderr" ? " stderr" : "";
  return `${when ? new Date(when).toISOString() : "-"} ${task}${mark} ${text}\n`;
}

function download(name, lines) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines.map(lineText), { type: "text/plain" }));
  link.download = `${name}.log`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** What the tasks of a job write, and what of it holds a word. */
export function JobLogs({ user, job, tasks }) {
  const [stream, pick] = useQuery("stream", "all");
  const [search, seek] = useQuery("find", "");
  const [held, set] = useState({ lines: [], error: null, wait: true });
  const placed = tasks.filter((task) => task.attempt > 0);
  // Those that run come first: what is over writes no more.
  const order = [...placed].sort((one, other) => (other.state === "running") - (one.state === "running"));
  const read = useRef([]);
  read.current = order.slice(0, MOST_TASKS);
  useEffect(() => {
    const [stop, reader] = [new AbortController(), new Reader(user, job, stream)];
    let timer = 0;
    const once = async () => {
      let error = null;
      try {
        await reader.look(read.current, stop.signal);
      } catch (caught) {
        error = caught;
      }
      if (stop.signal.aborted) return;
      set({ lines: [...reader.lines.list], error, wait: false });
      timer = setTimeout(once, PAUSE);
    };
    once();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [user, job, stream]);
  const found = useMemo(() => {
    const word = search.toLowerCase();
    return word ? held.lines.filter(({ text }) => text.toLowerCase().includes(word)) : held.lines;
  }, [held.lines, search]);
  const [box, stick] = [useRef(null), useRef(true)];
  useEffect(() => {
    if (stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [found]);
  const scrolled = () => {
    const el = box.current;
    stick.current = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
  };
  const left = placed.length > MOST_TASKS ? `of ${MOST_TASKS} of ${placed.length} tasks` : "";
  return html`<${Card} title="Output" aside=${left}>
    <div class="tools">
      <${Choice} label="Stream" value=${stream} options=${STREAMS} onPick=${pick} />
      <input type="search" value=${search} placeholder="Find in the output" aria-label="Find in the output"
        onInput=${(event) => seek(event.target.value)} />
      <button onClick=${() => download(`${user}-${job}`, found)} disabled=${!found.length}>Download</button>
    </div>
    ${held.error && html`<${Problem} error=${held.error} />`}
    <pre class="logs" ref=${box} onScroll=${scrolled} tabindex="0" aria-label="Output of the job">${
      found.length
        ? found.slice(-MOST_SHOWN).map((line) => html`<span class=${line.stream === "stderr" ? "err" : ""}><span
            class="faint">${line.at ? stamp(line.at) : "–"} ${line.task}</span> ${line.text}${"\n"}</span>`)
        : html`<span class="faint">${search ? "No line has that." : held.wait ? "Loading…" : "Nothing written yet."}</span>`
    }</pre>
  <//>`;
}
