// Server-sent events out of bytes as they come, for pages and for the worker alike.

/** What a reader does not see, or what turns the direction of what follows: on a terminal to which
    somebody copies it, it commands. Line ends and tabs are neither. */
const COMMANDS = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
/** Colours, which programs write into their output and nobody reads. */
const COLOURS = /\x1b\[[0-9;]{0,24}m/g;
/** Where JSON may have such characters: as they are, or as an escape. */
const SUSPECT = /[\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\\[ubfr]/;

function escaped(char) {
  const code = char.codePointAt(0);
  return code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
}

/** Text of others with every such character written out, as `\x1b`. */
export function visible(text) {
  return text.replace(COLOURS, "").replace(COMMANDS, escaped);
}

/** The same for JSON that is shown as it came: the escapes are its own, the value stays. */
export function visibleJson(text) {
  return text.replace(COMMANDS, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function visibleIn(_, value) {
  if (typeof value === "string") return visible(value);
  if (!value || typeof value !== "object" || Array.isArray(value)) return value;
  const fields = Object.entries(value);
  if (fields.every(([name]) => visible(name) === name)) return value;
  return Object.fromEntries(fields.map(([name, inner]) => [visible(name), inner]));
}

/** Everything that a master says comes by here, so no page can forget it: names, labels, reasons,
    errors and output of tasks are what others wrote. */
export function parsed(text) {
  // Large pictures of the cell have none, and are read as fast as they can be.
  return SUSPECT.test(text) ? JSON.parse(text, visibleIn) : JSON.parse(text);
}

export class EventReader {
  /** `take(kind, data, id)` for each event. */
  constructor(take) {
    this.take = take;
    this.rest = "";
    this.decoder = new TextDecoder();
  }

  feed(bytes) {
    // The end of an event may be split between two pieces.
    let from = Math.max(0, this.rest.length - 1);
    this.rest += this.decoder.decode(bytes, { stream: true });
    for (;;) {
      const end = this.rest.indexOf("\n\n", from);
      if (end < 0) return;
      const text = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + 2);
      from = 0;
      this.event(text);
    }
  }

  event(text) {
    let kind = "message";
    let id = null;
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("id: ")) id = line.slice(4);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) this.take(kind, parsed(data), id);
  }
}
