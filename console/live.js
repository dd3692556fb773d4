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

/** Columns of `/v1/overview` as typed arrays, one slot a machine. */
export class Machines {
  constructor() {
    this.clear();
  }

  clear() {
    this.slots = new Map();
    this.names = [];
    this.count = 0;
    this.columns = {};
    this.order = null;
  }

  column(name) {
    let found = this.columns[name];
    if (!found || found.length < this.names.length) {
      const wider = new Int32Array(Math.max(256, this.names.length * 2));
      if (found) wider.set(found);
      found = this.columns[name] = wider;
    }
    return found;
  }

  /** Takes in a picture, or what changed in it. */
  take(picture) {
    if (picture.whole) this.clear();
    const { id, name, ...rest } = picture.machines;
    const slots = new Array(id.length);
    for (let i = 0; i < id.length; i += 1) {
      let slot = this.slots.get(id[i]);
      if (slot === undefined) {
        slot = this.names.length;
        this.slots.set(id[i], slot);
        this.names.push(name[i]);
        this.order = null;
      }
      slots[i] = slot;
    }
    for (const [key, values] of Object.entries(rest)) {
      const column = this.column(key);
      for (let i = 0; i < values.length; i += 1) {
        column[slots[i]] = values[i] === null ? -1 : values[i];
      }
    }
    for (const gone of picture.gone) {
      const slot = this.slots.get(gone);
      if (slot === undefined) continue;
      this.slots.delete(gone);
      this.names[slot] = null;
      this.order = null;
    }
  }

  /** Slots in the order of names, numbers in them counted as numbers. */
  ordered() {
    if (!this.order) {
      const compare = new Intl.Collator("en", { numeric: true }).compare;
      const here = [];
      for (let slot = 0; slot < this.names.length; slot += 1) {
        if (this.names[slot] !== null) here.push(slot);
      }
      this.order = here.sort((a, b) => compare(this.names[a], this.names[b]));
    }
    return this.order;
  }
}

export const overview = new Store((store) => {
  store.machines = store.machines || new Machines();
  store.sums = store.sums || null;
  return watch(
    "/v1/watch/overview",
    (kind, picture) => {
      if (kind !== "overview") return;
      const begin = performance.now();
      store.machines.take(picture);
      const { machines, gone, ...sums } = picture;
      store.sums = sums;
      store.took = performance.now() - begin;
      store.changed();
    },
    (state, error) => store.tell(state, error),
  );
});
overview.machines = new Machines();
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
