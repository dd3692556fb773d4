// A session in a task: a terminal on the page, its bytes carried by a WebSocket that the master gives
// to its own pages alone, with the rights of whoever is before it.
// What the bytes mean on a screen is xterm.js's to say (`vendor/xterm.js`).
//
// Keys go to the command, Tab included, so there is another way out: Shift+Tab.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ApiError, get, token } from "./api.js";
import { Problem } from "./parts.js";

const PROTOCOL = "cell-exec";
const TERM = "xterm-256color";
/** Lines above the screen that are kept. */
const MOST_PAST = 1000;
/** Bytes that wait to be drawn, at most. */
const MOST_WAITING = 8 << 20;
/** Bytes of input in one frame. */
const PIECE = 16 << 10;
const FRAME = { data: 0, problems: 1, resize: 3, exit: 5, failed: 6 };

/** Splits what comes into frames: a byte of kind, four of length, content. */
export class FrameReader {
  constructor(take) {
    this.take = take;
    this.rest = new Uint8Array(0);
  }

  feed(bytes) {
    let all = bytes;
    if (this.rest.length) {
      all = new Uint8Array(this.rest.length + bytes.length);
      all.set(this.rest);
      all.set(bytes, this.rest.length);
    }
    this.rest = all;
    while (all.length >= 5) {
      const end = 5 + new DataView(all.buffer, all.byteOffset + 1, 4).getUint32(0);
      if (all.length < end) break;
      const [kind, body] = [all[0], all.subarray(5, end)];
      all = all.subarray(end);
      // Before it is taken: whatever becomes of it, the next begins here.
      this.rest = all;
      this.take(kind, body);
    }
    this.rest = all.slice();
  }
}

function frame(kind, body) {
  const bytes = new Uint8Array(5 + body.length);
  bytes[0] = kind;
  new DataView(bytes.buffer).setUint32(1, body.length);
  bytes.set(body, 5);
  return bytes;
}

const WORD = /(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/g;

/** Words of a command as a shell would split them, quotes and backslashes heeded; or what is amiss. */
export function words(text) {
  // What is in no word opens something that nothing closes; left out, it would be another command.
  const [open] = text.replace(WORD, "").trim();
  if (open) {
    const message = open === "\\"
      ? "The command ends with a backslash, and nothing follows that it could be for."
      : `The command has a quote (${open}) that is not closed.`;
    throw new ApiError(0, { message, hint: "Nothing was run." });
  }
  const found = [];
  for (const [piece] of text.matchAll(WORD)) {
    found.push(
      piece.replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/g, (_, raw, quoted, one) =>
        raw ?? (quoted === undefined ? one : quoted.replace(/\\(["\\$`])/g, "$1"))),
    );
  }
  return found;
}

/** One session: `on.data(bytes)`, `on.end({code, error})` once. */
class Session {
  constructor(path, command, size, on) {
    const query = new URLSearchParams({ command: JSON.stringify(command), terminal: size, term: TERM });
    this.path = `${path}?${query}`;
    this.on = on;
    this.over = false;
    const own = token();
    const place = `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${this.path}`;
    this.socket = new WebSocket(place, own ? [PROTOCOL, `cell-token.${own}`] : [PROTOCOL]);
    this.socket.binaryType = "arraybuffer";
    this.opened = false;
    const reader = new FrameReader((kind, body) => this.hear(kind, body));
    this.socket.onopen = () => {
      this.opened = true;
      on.open();
    };
    this.socket.onmessage = (event) => reader.feed(new Uint8Array(event.data));
    this.socket.onclose = () => this.closed();
  }

  hear(kind, body) {
    if (kind === FRAME.data || kind === FRAME.problems) {
      if (body.length) this.on.data(body);
    } else if (kind === FRAME.exit) {
      this.end({ code: new DataView(body.buffer, body.byteOffset, 4).getInt32(0) });
    } else if (kind === FRAME.failed) {
      this.end({ error: new ApiError(0, { message: new TextDecoder().decode(body) }) });
    }
  }

  async closed() {
    if (this.over) return;
    if (this.opened) {
      const message = "The session was ended: the task, or the right to it.";
      this.end({ error: new ApiError(0, { message }) });
      return;
    }
    // Why a WebSocket was refused is kept from pages; the same question in plain words is answered.
    try {
      await get(this.path);
    } catch (error) {
      const plain = error.code === "upgrade-required";
      const message = "The connection could not be opened; something on the way may not let it through.";
      this.end({ error: plain ? new ApiError(0, { message }) : error });
    }
  }

  end(how) {
    if (this.over) return;
    this.over = true;
    this.socket.close();
    this.on.end(how);
  }

  say(kind, body) {
    if (!this.over && this.socket.readyState === WebSocket.OPEN) this.socket.send(frame(kind, body));
  }

  type(text) {
    this.send(new TextEncoder().encode(text));
  }

  send(bytes) {
    for (let at = 0; at < bytes.length; at += PIECE) {
      this.say(FRAME.data, bytes.subarray(at, at + PIECE));
    }
  }

  resize(rows, columns) {
    const body = new DataView(new ArrayBuffer(4));
    body.setUint16(0, rows);
    body.setUint16(2, columns);
    this.say(FRAME.resize, new Uint8Array(body.buffer));
  }

  leave() {
    this.over = true;
    this.socket.close();
  }
}

/** Where to loop that often in one go costs a program a few bytes and the page its time. */
const COUNTED = "bSTLM@PXIZ";
const MOST_COUNT = 9999;
const SIZES = { rows: [4, 200], columns: [20, 500] };
const COLOURS = {
  background: "#0d121a", foreground: "#dfe6f0", cursor: "#dfe6f0", cursorAccent: "#0d121a",
  selectionBackground: "#3b5378",
  black: "#3a4454", red: "#ff7b86", green: "#5fd79b", yellow: "#f2be68",
  blue: "#7eabff", magenta: "#d3a4ff", cyan: "#5cd3de", white: "#c9d2de",
  brightBlack: "#7d8aa0", brightRed: "#ff9aa3", brightGreen: "#86e7b5", brightYellow: "#ffd591",
  brightBlue: "#a4c4ff", brightMagenta: "#e2c3ff", brightCyan: "#8ae6ee", brightWhite: "#ffffff",
};

/** The emulator and its styles, fetched by the first terminal of the page. */
let emulator = null;
function load() {
  emulator ??= Promise.all([import("./vendor/xterm.js"), import("./vendor/xterm-fit.js"), styles()])
    .then(([{ Terminal }, { FitAddon }]) => ({ Terminal, FitAddon }))
    .catch((error) => {
      emulator = null;
      throw new ApiError(0, { message: `The terminal could not be loaded: ${error.message}` });
    });
  return emulator;
}

function styles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "/console/vendor/xterm.css";
  return new Promise((done, fail) => {
    link.onload = done;
    link.onerror = () => {
      link.remove();
      fail(new Error("its styles are missing"));
    };
    document.head.append(link);
  });
}

/** The policy of these pages takes no styles that are written into the document, and stays that way.
    The emulator writes some of its own: those of its spans go through the object model instead. */
function strict() {
  HTMLSpanElement.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  };
}

/** An element that stands for a sheet: its text is the sheet's, which goes when it is removed. */
function sheet() {
  const stand = Document.prototype.createElement.call(document, "span");
  const own = new CSSStyleSheet();
  document.adoptedStyleSheets.push(own);
  Object.defineProperty(stand, "textContent", { set: (text) => own.replaceSync(text) });
  stand.remove = () => {
    Element.prototype.remove.call(stand);
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== own);
  };
  return stand;
}

/** Opens it with sheets in the place of its style elements, all of which it makes now. */
function openIn(terminal, box) {
  const make = Document.prototype.createElement;
  document.createElement = (name, ...rest) => (name === "style" ? sheet() : make.call(document, name, ...rest));
  try {
    terminal.open(box);
  } finally {
    delete document.createElement;
  }
}

/** An emulator of which a program can use the screen and nothing else. */
export function emulate({ Terminal }, box) {
  strict();
  const terminal = new Terminal({
    drawBoldTextInBrightColors: false,
    fontFamily: getComputedStyle(box).fontFamily,
    fontSize: 13,
    lineHeight: 1.2,
    logLevel: "off",
    minimumContrastRatio: 4.5,
    screenReaderMode: true,
    scrollback: MOST_PAST,
    theme: COLOURS,
  });
  // No links: what is behind one is the program's word, and a click is the reader's.
  terminal.parser.registerOscHandler(8, () => true);
  for (const final of COUNTED) {
    terminal.parser.registerCsiHandler({ final }, ([count]) => count > MOST_COUNT);
  }
  openIn(terminal, box);
  return terminal;
}

/** Hands on what a program writes. A page cannot hold a program back: what comes while too much waits
    to be drawn is left out, and that is said in its place. */
export function writer(terminal) {
  let [waiting, left] = [0, 0];
  const tell = () => {
    if (left) terminal.write(`\x18\x1b[0m\r\n[${left} bytes left out: they came faster than they are drawn]\r\n`);
    left = 0;
  };
  return (bytes) => {
    if (waiting + bytes.length > MOST_WAITING) {
      left += bytes.length;
      return;
    }
    tell();
    waiting += bytes.length;
    terminal.write(bytes, () => {
      waiting -= bytes.length;
      if (!waiting) tell();
    });
  };
}

/** Takes the room there is; what it has then. */
function fit(terminal, addon) {
  const room = addon.proposeDimensions();
  if (!room || Number.isNaN(room.rows) || Number.isNaN(room.cols)) return;
  const within = (n, [least, most]) => Math.max(least, Math.min(most, n));
  terminal.resize(within(room.cols, SIZES.columns), within(room.rows, SIZES.rows));
}

/** Keys that are the browser's: the way out, and with Shift and for pasting what it has. */
function isOfBrowser({ key, ctrlKey, altKey, shiftKey }) {
  if (key === "Tab") return shiftKey;
  return ctrlKey && !altKey && key.length === 1 && (shiftKey || key === "v");
}

/** Text that ends a bracketed paste itself would be typed after it. */
const bare = (text) => text.replaceAll("\x1b", "");

function begin({ Terminal, FitAddon }, box, { path, command, label, onOpen, onEnd }) {
  const terminal = emulate({ Terminal }, box);
  const addon = new FitAddon();
  terminal.loadAddon(addon);
  fit(terminal, addon);
  terminal.textarea.setAttribute("aria-label", `${label}. Shift and Tab leave it.`);
  terminal.attachCustomKeyEventHandler((event) => !isOfBrowser(event));
  const session = new Session(path, command, `${terminal.rows}x${terminal.cols}`, {
    open: onOpen,
    data: writer(terminal),
    end: (how) => {
      terminal.options.disableStdin = true;
      terminal.write("\x1b[?25l");
      onEnd(how);
    },
  });
  terminal.onData((text) => session.type(text));
  terminal.onBinary((text) => session.send(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => session.resize(rows, cols));
  const watcher = new ResizeObserver(() => fit(terminal, addon));
  watcher.observe(box);
  // What is out of sight is not drawn.
  box.scrollIntoView({ block: "nearest" });
  terminal.focus();
  return {
    paste: (text) => terminal.paste(bare(text)),
    leave: () => {
      watcher.disconnect();
      session.leave();
      terminal.dispose();
    },
  };
}

/** A terminal with one command on it. */
function Terminal(props) {
  const [box, held] = [useRef(), useRef(null)];
  useEffect(() => {
    let left = false;
    load().then(
      (parts) => {
        if (!left) held.current = begin(parts, box.current, props);
      },
      (error) => left || props.onEnd({ error }),
    );
    return () => {
      left = true;
      if (held.current) held.current.leave();
    };
  }, []);
  const paste = (event) => {
    event.preventDefault();
    event.stopPropagation();
    if (held.current) held.current.paste(event.clipboardData.getData("text"));
  };
  // The page's own keys are for the page.
  const press = (event) => event.stopPropagation();
  return html`<div class="terminal-box" onKeyDown=${press} onPasteCapture=${paste}>
    <div class="screen" ref=${box}></div>
  </div>`;
}

/** A command to run where the task runs, and the terminal it runs on. */
export function Exec({ name, path, runs }) {
  const [text, set] = useState("sh");
  const [session, open] = useState(null);
  const [state, tell] = useState(null);
  const button = useRef(null);
  const begin = (event) => {
    event.preventDefault();
    try {
      const command = words(text);
      if (!command.length) return;
      tell("wait");
      open({ command, turn: (session ? session.turn : 0) + 1 });
    } catch (error) {
      tell({ error });
    }
  };
  const end = (how) => {
    tell(how);
    if (button.current) button.current.focus({ preventScroll: true });
  };
  const stop = () => {
    open(null);
    tell(null);
  };
  const live = session && (state === "wait" || state === "open");
  return html`<form class="exec" onSubmit=${begin}>
      <label>Command <input value=${text} onInput=${(event) => set(event.target.value)} spellcheck="false"
        autocomplete="off" autocapitalize="off" disabled=${live} required /></label>
      ${live
        ? html`<button type="button" ref=${button} onClick=${stop}>End the session</button>`
        : html`<button type="submit" class="primary" ref=${button} disabled=${!runs}>Open a terminal</button>`}
    </form>
    ${session && html`<${Terminal} key=${session.turn} path=${path} command=${session.command}
      label=${`Terminal in ${name}`} onOpen=${() => tell("open")} onEnd=${end} />`}
    <${Said} state=${state} runs=${runs} />`;
}

function Said({ state, runs }) {
  if (state && state.error) return html`<${Problem} error=${state.error} />`;
  let text = "Runs where the task runs, as its user and within its limits, and ends with it. It is audited.";
  if (!runs) text = "A terminal can be opened while the task runs.";
  if (state === "wait") text = "Connecting…";
  if (state === "open") text = "Keys go to the command. Shift+Tab leaves the terminal, Shift+PageUp shows what went by.";
  if (state && state.code !== undefined) text = `Ended with exit code ${state.code}.`;
  return html`<p class="faint" role="status">${text}</p>`;
}
