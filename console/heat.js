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

function colourOf(columns, slot, measure, dimension, theme) {
  if (columns.state[slot] & DOWN) return pack(SPECIAL[theme].down);
  if (measure === "band") {
    const limit = columns[`${dimension}_limit`][slot];
    if (limit <= 0) return pack(BANDS[theme].empty);
    const production = columns[`${dimension}_production`][slot] / limit;
    const full = mix(BANDS[theme].batch, BANDS[theme].production, Math.min(1, production));
    return pack(mix(BANDS[theme].empty, full, 0.35 + 0.65 * Math.min(1, limit / 100)));
  }
  const share = columns[`${dimension}_${measure}`][slot];
  if (share < 0) return pack(SPECIAL[theme].unknown);
  return ramps[theme][Math.min(share, ramps[theme].length - 1)];
}

/** Paints the map; returns its layout, for finding the machine under a pointer. */
export function paint(canvas, machines, { measure, dimension, theme, dim }) {
  const order = machines.ordered();
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
  const image = pen.createImageData(pw, ph);
  const pixels = new Int32Array(image.data.buffer);
  const side = Math.round((plan.step - plan.gap) * ratio);
  const pace = plan.step * ratio;
  const { columns } = machines;
  for (let i = 0; i < order.length; i += 1) {
    let colour = colourOf(columns, order[i], measure, dimension, theme);
    if (dim && !dim[order[i]]) colour = (colour & 0x00ffffff) | (40 << 24);
    const left = Math.round((i % plan.columns) * pace);
    const top = Math.round(Math.floor(i / plan.columns) * pace);
    for (let y = top; y < top + side; y += 1) {
      pixels.fill(colour, y * pw + left, y * pw + left + side);
    }
  }
  pen.putImageData(image, 0, 0);
  marks(pen, machines, order, plan, ratio);
  return { ...plan, order };
}

/** Draining machines have a corner, over-committed ones a dot: not by colour alone. */
function marks(pen, machines, order, plan, ratio) {
  const { state } = machines.columns;
  if (!state) return;
  const side = (plan.step - plan.gap) * ratio;
  for (let i = 0; i < order.length; i += 1) {
    const bits = state[order[i]];
    if (!(bits & (DRAINING | OVER))) continue;
    const x = (i % plan.columns) * plan.step * ratio;
    const y = Math.floor(i / plan.columns) * plan.step * ratio;
    if (bits & DRAINING) {
      pen.fillStyle = "#f0a020";
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + side, y);
      pen.lineTo(x, y + side);
      pen.fill();
    }
    if (bits & OVER) {
      pen.fillStyle = "#e0203c";
      pen.beginPath();
      pen.arc(x + side / 2, y + side / 2, side / 4, 0, 7);
      pen.fill();
    }
  }
}

/** Position in the order of the machine at a point, or -1. */
export function find(plan, x, y) {
  const column = Math.floor(x / plan.step);
  const row = Math.floor(y / plan.step);
  if (column < 0 || row < 0 || column >= plan.columns) return -1;
  const at = row * plan.columns + column;
  return at < plan.order.length ? at : -1;
}
