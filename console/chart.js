// Lines over time on a canvas: usage against reservation and limit. Three lines and two axes need no
// library.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { amount } from "./units.js";

const PAD = { left: 76, right: 12, top: 10, bottom: 22 };

/** Dashes of the limit lie in the gaps of the reservation: both are seen where they are the same. */
const LINES = [["limit", [5, 7], 1.5], ["reserved", [7, 5], 1.5], ["used", [], 2]];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A round number at or above `n`, for the top of the axis; bytes are round in powers of two. */
function roundUp(n, binary = false) {
  if (n <= 0) return 1;
  const base = binary ? 2 : 10;
  const power = base ** Math.floor(Math.log(n) / Math.log(base));
  const steps = binary ? [1, 1.5, 2] : [1, 2, 2.5, 4, 5, 8, 10];
  return power * (steps.find((step) => step * power >= n) || base);
}

function scale(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

function axes(pen, frame, top, dimension, from, until) {
  pen.font = `11px ${colour("--font")}`;
  pen.fillStyle = colour("--faint");
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(frame.y(share * top)) + 0.5;
    pen.beginPath();
    pen.moveTo(PAD.left, y);
    pen.lineTo(frame.right, y);
    pen.stroke();
    pen.fillText(amount(dimension, share * top), PAD.left - 6, y);
  }
  pen.textBaseline = "top";
  const clock = (ms) => new Date(ms).toTimeString().slice(0, until - from > 6e5 ? 5 : 8);
  pen.textAlign = "left";
  pen.fillText(clock(from), PAD.left, frame.bottom + 6);
  pen.textAlign = "right";
  pen.fillText(clock(until), frame.right, frame.bottom + 6);
}

function line(pen, frame, points, key, dimension) {
  pen.beginPath();
  let down = false;
  for (const point of points) {
    const value = point[key] && point[key][dimension];
    if (value === undefined || value === null) {
      down = false;
      continue;
    }
    const [x, y] = [frame.x(point.at), frame.y(value)];
    if (down) pen.lineTo(x, y);
    else pen.moveTo(x, y);
    down = true;
  }
  pen.stroke();
  // A line of one point is none; the newest value is always to be seen.
  const last = points[points.length - 1];
  if (down && last) {
    pen.beginPath();
    pen.arc(frame.x(last.at), frame.y(last[key][dimension]), 2.5, 0, 7);
    pen.fill();
  }
}

function draw(canvas, points, dimension) {
  const { pen, width, height } = scale(canvas);
  const frame = { right: width - PAD.right, bottom: height - PAD.bottom };
  const values = points.flatMap((p) => [p.used, p.reserved, p.limit]);
  const most = Math.max(0, ...values.filter(Boolean).map((v) => v[dimension]));
  const top = roundUp(most * 1.05, dimension !== "cpu");
  const until = points.length ? points[points.length - 1].at : Date.now();
  const from = Math.min(points.length ? points[0].at : until, until - 60_000);
  frame.x = (at) => PAD.left + ((at - from) / (until - from || 1)) * (frame.right - PAD.left);
  frame.y = (v) => frame.bottom - (v / top) * (frame.bottom - PAD.top);
  axes(pen, frame, top, dimension, from, until);
  pen.lineJoin = "round";
  for (const [key, dash, thick] of LINES) {
    pen.strokeStyle = pen.fillStyle = colour(`--${key}`);
    pen.setLineDash(dash);
    pen.lineDashOffset = key === "limit" ? -LINES[1][1][0] : 0;
    pen.lineWidth = thick;
    line(pen, frame, points, key, dimension);
  }
  pen.setLineDash([]);
}

/** `points`: `{at, used, reserved, limit}` with resources, oldest first. */
export function Chart({ points, dimension, title }) {
  const box = useRef(null);
  useEffect(() => {
    const again = () => box.current && draw(box.current, points, dimension);
    again();
    const watcher = new ResizeObserver(again);
    watcher.observe(box.current);
    const theme = new MutationObserver(again);
    theme.observe(document.documentElement, { attributes: true });
    return () => {
      watcher.disconnect();
      theme.disconnect();
    };
  });
  const last = points[points.length - 1];
  const say = (key) => (last && last[key] ? amount(dimension, last[key][dimension]) : "unknown");
  const used = last && last.used ? `${say("used")} used` : "usage unknown";
  const text = `${title}: ${used}, ${say("reserved")} reserved, ${say("limit")} limit`;
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong>
      <span class="used">${used}</span>
      <span class="reserved">${say("reserved")} reserved</span>
      <span class="limit">${say("limit")} limit</span>
    </figcaption>
    <canvas ref=${box} role="img" aria-label=${text}></canvas>
  </figure>`;
}
