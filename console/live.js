// What the console knows of the cell, kept fresh by watches: each store follows its watch for as
// long as some page looks at it, and pages are drawn at most once a frame, however much happens.

import { useEffect, useState } from "./vendor/htm-preact.js";
import { watch } from "./api.js";

/** A value, who looks at it, and what keeps it fresh meanwhile. */
class Store {
  constructor(start) {
    this.start = start;
    this.lookers = new Set();
    this.stop = null;
    this.frame = 0;
    this.version = 0;
    this.pace = 0;
    this.state = "wait";
    this.error = null;
  }

  changed() {
    this.version += 1;
    if (this.frame) return;
    const draw = () => {
      this.frame = 0;
      for (const look of [...this.lookers]) look(this.version);
    };
    this.frame = this.pace
      ? setTimeout(() => requestAnimationFrame(draw), this.pace)
      : requestAnimationFrame(draw);
  }

  tell(state, error) {
    this.state = state;
    this.error = error || null;
    this.changed();
  }

  look(looker) {
    this.lookers.add(looker);
    if (this.lookers.size === 1 && !this.stop) this.stop = this.start(this);
    return () => {
      this.lookers.delete(looker);
      // Another page may look in a moment; what was learnt is then still there.
      if (this.lookers.size === 0) setTimeout(() => this.rest(), 500);
    };
  }

  rest() {
    if (this.lookers.size || !this.stop) return;
    this.stop();
    this.stop = null;
  }

  /** Begins anew, as somebody else. */
  again() {
    if (this.stop) this.stop();
    this.stop = this.lookers.size ? this.start(this) : null;
    this.changed();
  }
}

/** Draws the component again whenever the store has changed. */
export function useStore(store) {
  const [, seen] = useState(0);
  useEffect(() => store.look(seen), [store]);
  return store;
}

/** Least and most time until a worker that broke has a successor. */
const PAUSES = [500, 8000];

/**
 * Bytes of the watch are read by a worker; what it makes of them comes back ready to be painted.
 * `broke()` when it does not load, dies or cannot read what came: it is of no use from then on.
 */
function painter(store, came, broke) {
  const worker = new Worker("/console/picture.js", { type: "module" });
  // A connection alone shows nothing new: the picture is live once a worker made one of it.
  let connected = false;
  worker.onmessage = ({ data: { sums, ...told } }) => {
    Object.assign(store.machines, told);
    store.sums = sums;
    came();
    if (connected) store.tell("live");
    else store.changed();
  };
  const reader = () => {
    worker.postMessage("begin");
    return { feed: (bytes) => worker.postMessage(bytes, [bytes.buffer]) };
  };
  const tell = (state, error) => {
    connected = state === "live";
    if (!connected) store.tell(state, error);
  };
  const stop = watch("/v1/watch/overview", () => {}, tell, reader);
  const end = () => {
    // What it said last may still be on its way.
    worker.onmessage = null;
    worker.onerror = null;
    stop();
    worker.terminate();
  };
  worker.onerror = () => {
    end();
    broke();
  };
  return end;
}

export const overview = new Store((store) => {
  const [least, most] = PAUSES;
  let pause = least;
  let timer = 0;
  let end = null;
  const came = () => {
    pause = least;
  };
  const begin = () => {
    end = painter(store, came, () => {
      store.tell("lost", new Error("The picture of the cell could not be read."));
      timer = setTimeout(begin, pause);
      pause = Math.min(pause * 2, most);
    });
  };
  begin();
  return () => {
    clearTimeout(timer);
    end();
  };
});
/** Names and columns by slot, and slots in the order of names. */
overview.machines = { names: [], order: [], columns: {} };
overview.sums = null;

/** Of more jobs than this the list is sorted and drawn once a second, not at every change. */
const MANY = 2000;

/** All jobs in short, by `user/name`. */
export const jobs = new Store((store) => {
  store.byKey = new Map();
  store.synced = false;
  return watch(
    "/v1/watch/job_rows",
    (kind, data) => {
      if (kind === "job") store.byKey.set(`${data.user}/${data.name}`, data);
      else if (kind === "gone") store.byKey.delete(`${data.user}/${data.job}`);
      else if (kind === "synced") store.synced = true;
      else if (kind === "reset") store.byKey.clear();
      store.pace = store.synced && store.byKey.size > MANY ? 1000 : 0;
      store.changed();
    },
    (state, error) => store.tell(state, error),
  );
});
jobs.byKey = new Map();
jobs.synced = false;

/** The newest events, newest first, and how far back they reach. */
const MOST_EVENTS = 2000;
export const events = new Store((store) => {
  store.items = [];
  return watch(
    "/v1/watch/events",
    (kind, event) => {
      if (kind !== "event") return;
      store.items.unshift(event);
      if (store.items.length > MOST_EVENTS) store.items.length = MOST_EVENTS;
      store.changed();
    },
    (state, error) => store.tell(state, error),
  );
});
events.items = [];

/** Everything again, with another token. */
export function restart() {
  for (const store of [overview, jobs, events]) store.again();
}

/**
 * Something that is read again when `key` or the reader's dependencies change, every `every` ms if
 * given (a number, or what says it), and on demand. The old value stays while the new one is on its way.
 */
export function useRead(read, deps, every) {
  const [held, set] = useState({ value: null, error: null, wait: true });
  const [turn, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const once = async () => {
      try {
        const value = await read(stop.signal);
        if (!stop.signal.aborted) set({ value, error: null, wait: false });
      } catch (error) {
        if (stop.signal.aborted) return;
        set((before) => ({ value: before.value, error, wait: false }));
      }
      const pause = typeof every === "function" ? every() : every;
      if (pause && !stop.signal.aborted) timer = setTimeout(once, pause);
    };
    once();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [...deps, turn]);
  return { ...held, again: () => again((n) => n + 1) };
}
