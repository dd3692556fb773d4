// The machines of a cell as a map of squares. One canvas and one image: twelve thousand squares are
// painted into its bytes in a millisecond or two, where as many elements would take a second.

export const MEASURES = {
  used: "Usage",
  reserved: "Reservation",
  limit: "Limit",
  band: "Band",
};

export const DOWN = 1;
export const DRAINING = 2;
export const OVER = 4;
export const SHORT = 8;

/** Stops of the scale from nothing to full and beyond, per theme. */
const SCALES = {
  light: [[226, 232, 240], [147, 190, 240], [60, 120, 216], [33, 60, 140], [190, 30, 60]],
  dark: [[38, 46, 60], [34, 74, 130], [52, 124, 220], [150, 200, 255], [255, 92, 112]],
};
const AT = [0, 40, 75, 100, 130];
const BANDS = {
  light: { production: [36, 86, 200], batch: [224, 142, 30], empty: [226, 232, 240] },
  dark: { production: [84, 150, 255], batch: [240, 170, 70], empty: [38, 46, 60] },
};
const SPECIAL = {
  light: { down: [60, 64, 72], unknown: [240, 242, 246] },
  dark: { down: [8, 9, 12], unknown: [26, 31, 40] },
};

function pack([r, g, b]) {
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

function mix(a, b, share) {
  return a.map((from, i) => Math.round(from + (b[i] - from) * share));
}

/** A colour for every percent, so that painting is looking up. */
function ramp(theme) {
  const stops = SCALES[theme];
  const out = new Int32Array(AT[AT.length - 1] + 1);
  for (let at = 1; at < AT.length; at += 1) {
    for (let p = AT[at - 1]; p <= AT[at]; p += 1) {
      out[p] = pack(mix(stops[at - 1], stops[at], (p - AT[at - 1]) / (AT[at] - AT[at - 1])));
    }
  }
  return out;
}

const ramps = { light: ramp("light"), dark: ramp("dark") };

/**
 * The same for the band: by percent of the machine that is promised, and of that what is production.
 * Made when it is first asked for.
 */
const bandTables = {};
function bandTable(theme) {
  if (bandTables[theme]) return bandTables[theme];
  const { production, batch, empty } = BANDS[theme];
  const out = new Int32Array(101 * 101);
  for (let share = 0; share <= 100; share += 1) {
    const full = mix(batch, production, share / 100);
    for (let limit = 1; limit <= 100; limit += 1) {
      out[limit * 101 + share] = pack(mix(empty, full, 0.35 + (0.65 * limit) / 100));
    }
    out[share] = pack(empty);
  }
  bandTables[theme] = out;
  return out;
}

export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

/** The scale as a CSS gradient, for the key below the map. */
export function gradient(theme) {
  const last = AT[AT.length - 1];
  const stops = SCALES[theme].map((c, i) => `${css(c)} ${(100 * AT[i]) / last}%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

export function bandColours(theme) {
  return BANDS[theme];
}

/** Rows and columns of squares that fill the width and keep to the height. */
function layout(machines, width, height) {
  const fit = Math.sqrt((width * height) / Math.max(1, machines));
  const step = Math.max(3, Math.min(26, Math.floor(fit)));
  const columns = Math.max(1, Math.floor(width / step));
  const rows = Math.ceil(machines / columns) || 1;
  return { step, columns, rows, gap: step > 12 ? 2 : step > 4 ? 1 : 0 };
}

/** The colour of a slot. Which columns it is made of is looked up here, once for all squares. */
function colours({ columns }, { measure, dimension, theme }) {
  const { state } = columns;
  const down = pack(SPECIAL[theme].down);
  if (measure === "band") {
    const limits = columns[`${dimension}_limit`];
    const production = columns[`${dimension}_production`];
    const table = bandTable(theme);
    return (slot) => {
      if (state[slot] & DOWN) return down;
      const limit = limits[slot];
      const share = limit > 0 ? Math.min(100, Math.round((100 * production[slot]) / limit)) : 0;
      return table[Math.min(100, limit) * 101 + share];
    };
  }
  const shares = columns[`${dimension}_${measure}`];
  const table = ramps[theme];
  const unknown = pack(SPECIAL[theme].unknown);
  return (slot) => {
    if (state[slot] & DOWN) return down;
    const share = shares[slot];
    return share < 0 ? unknown : table[Math.min(share, table.length - 1)];
  };
}

/** The bytes that were painted last, used again while the size stays. */
let held = null;

function blank(pen, width, height) {
  if (held && held.image.width === width && held.image.height === height) {
    held.pixels.fill(0);
  } else {
    const image = pen.createImageData(width, height);
    held = { image, pixels: new Int32Array(image.data.buffer) };
  }
  return held;
}

/** Paints the map; returns its layout, for finding the machine under a pointer. */
export function paint(canvas, machines, look) {
  const { order } = machines;
  const width = canvas.parentElement.clientWidth;
  const plan = layout(order.length, width, Math.min(420, Math.max(180, window.innerHeight * 0.45)));
  const ratio = plan.step > 6 ? Math.min(2, window.devicePixelRatio || 1) : 1;
  const [w, h] = [plan.columns * plan.step, plan.rows * plan.step];
  const [pw, ph] = [Math.round(w * ratio), Math.round(h * ratio)];
  if (canvas.width !== pw || canvas.height !== ph) {
    canvas.width = pw;
    canvas.height = ph;
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
  }
  const pen = canvas.getContext("2d", { alpha: true });
  const { image, pixels } = blank(pen, pw, ph);
  const side = Math.round((plan.step - plan.gap) * ratio);
  const pace = plan.step * ratio;
  const colourOf = colours(machines, look);
  for (let first = 0, row = 0; first < order.length; first += plan.columns, row += 1) {
    const top = Math.round(row * pace) * pw;
    const end = Math.min(plan.columns, order.length - first);
    for (let i = 0; i < end; i += 1) {
      const colour = colourOf(order[first + i]);
      const left = top + Math.round(i * pace);
      for (let x = left; x < left + side; x += 1) pixels[x] = colour;
    }
    // The other lines of these squares are the same.
    for (let y = 1; y < side; y += 1) pixels.copyWithin(top + y * pw, top, top + pw);
  }
  pen.putImageData(image, 0, 0);
  marks(pen, machines, plan, ratio);
  return { ...plan, order };
}

/** Draining machines have a corner, over-committed ones a dot: not by colour alone. */
function marks(pen, { columns: { state }, order }, plan, ratio) {
  const side = (plan.step - plan.gap) * ratio;
  const [corners, dots] = [new Path2D(), new Path2D()];
  for (let i = 0; i < order.length; i += 1) {
    const bits = state[order[i]];
    if (!(bits & (DRAINING | OVER))) continue;
    const x = (i % plan.columns) * plan.step * ratio;
    const y = Math.floor(i / plan.columns) * plan.step * ratio;
    if (bits & DRAINING) {
      corners.moveTo(x, y);
      corners.lineTo(x + side, y);
      corners.lineTo(x, y + side);
    }
    if (bits & OVER) {
      dots.moveTo(x + (side * 3) / 4, y + side / 2);
      dots.arc(x + side / 2, y + side / 2, side / 4, 0, 7);
    }
  }
  pen.fillStyle = "#f0a020";
  pen.fill(corners);
  pen.fillStyle = "#e0203c";
  pen.fill(dots);
}

/** Position in the order of the machine at a point, or -1. */
export function find(plan, x, y) {
  const column = Math.floor(x / plan.step);
  const row = Math.floor(y / plan.step);
  if (column < 0 || row < 0 || column >= plan.columns) return -1;
  const at = row * plan.columns + column;
  return at < plan.order.length ? at : -1;
}
