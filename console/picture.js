// A worker: bytes of the overview's watch go in, columns of machines come out. With every machine
// changed an update is half a megabyte of JSON, and reading it would hold up the page for longer than
// a frame; so the page gets typed arrays, handed over without a copy, and only paints.
//
// In: `"begin"` when a connection begins, then its bytes. Out: `{sums, names, order, columns}`; names
// and their order only when they changed.

import { EventReader } from "./stream.js";

/** Columns of `/v1/overview` as typed arrays, one slot a machine. */
class Machines {
  constructor() {
    this.slots = new Map();
    this.names = [];
    this.columns = {};
    this.isRenamed = true;
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

  /** Takes in what changed. */
  take({ id, name, ...rest }, gone) {
    const slots = new Uint32Array(id.length);
    for (let i = 0; i < id.length; i += 1) {
      let slot = this.slots.get(id[i]);
      if (slot === undefined) {
        slot = this.names.length;
        this.slots.set(id[i], slot);
        this.names.push(name[i]);
        this.isRenamed = true;
      }
      slots[i] = slot;
    }
    for (const [key, values] of Object.entries(rest)) {
      const column = this.column(key);
      for (let i = 0; i < values.length; i += 1) {
        column[slots[i]] = values[i] === null ? -1 : values[i];
      }
    }
    for (const machine of gone) {
      const slot = this.slots.get(machine);
      if (slot === undefined) continue;
      this.slots.delete(machine);
      this.names[slot] = null;
      this.isRenamed = true;
    }
  }

  /** Slots in the order of names, numbers in them counted as numbers. */
  ordered() {
    const { compare } = new Intl.Collator("en", { numeric: true });
    const here = [];
    for (let slot = 0; slot < this.names.length; slot += 1) {
      if (this.names[slot] !== null) here.push(slot);
    }
    return Uint32Array.from(here.sort((a, b) => compare(this.names[a], this.names[b])));
  }

  /** What the page needs to know, and which of it is handed over. */
  told() {
    const told = { columns: {} };
    for (const [key, column] of Object.entries(this.columns)) {
      told.columns[key] = column.slice(0, this.names.length);
    }
    const handed = Object.values(told.columns).map((column) => column.buffer);
    if (this.isRenamed) {
      this.isRenamed = false;
      told.names = this.names;
      told.order = this.ordered();
      handed.push(told.order.buffer);
    }
    return [told, handed];
  }
}

let machines = new Machines();
let reader = null;

function take(kind, { machines: changed, gone, ...sums }) {
  if (kind !== "overview") return;
  if (sums.whole) machines = new Machines();
  machines.take(changed, gone);
  const [told, handed] = machines.told();
  postMessage({ sums, ...told }, handed);
}

onmessage = ({ data }) => {
  if (data === "begin") reader = new EventReader(take);
  else reader.feed(data);
};
