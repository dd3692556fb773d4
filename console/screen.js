// What a terminal shows: rows of cells, changed by what a program writes. Of the xterm that programs
// take for granted it knows what shells, pagers and editors use: colours, moving and erasing, scroll
// regions, the second screen, lines drawn with letters. The rest is passed over.
//
// A program that means no good can draw on its own screen and nothing else: titles, clipboards, files
// and links are not heard, and the three questions it may ask have fixed answers.

/** Lines that left the top and nobody has fetched yet. */
const MOST_PAST = 1000;
const MOST_PARAMETERS = 16;

const styles = new Map();

/** Equal styles are one object, so that runs are found by comparing references. */
function style(fg, bg, flags) {
  const key = `${fg}|${bg}|${flags}`;
  let found = styles.get(key);
  if (!found) {
    // Made-up colours could be endless.
    if (styles.size > 4096) {
      styles.clear();
      styles.set("null|null|0", PLAIN);
    }
    found = { fg, bg, flags };
    styles.set(key, found);
  }
  return found;
}

export const BOLD = 1;
export const DIM = 2;
export const ITALIC = 4;
export const UNDERLINE = 8;
export const INVERSE = 16;
export const HIDDEN = 32;
export const STRIKE = 64;

const PLAIN = style(null, null, 0);
const FLAGS = { 1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 7: INVERSE, 8: HIDDEN, 9: STRIKE };
const ENDS = { 22: BOLD | DIM, 23: ITALIC, 24: UNDERLINE, 27: INVERSE, 28: HIDDEN, 29: STRIKE };

/** Letters that draw lines in the second character set. */
const DRAWN = {
  j: "┘", k: "┐", l: "┌", m: "└", n: "┼", q: "─", t: "├", u: "┤", v: "┴", w: "┬", x: "│",
  a: "▒", f: "°", g: "±", "`": "◆", "~": "·", y: "≤", z: "≥",
};

const MARK = /\p{M}|[\u200b-\u200f\ufe00-\ufe0f]/u;
const WIDE = [
  [0x1100, 0x115f], [0x2e80, 0xa4cf], [0xac00, 0xd7a3], [0xf900, 0xfaff], [0xfe30, 0xfe6f],
  [0xff00, 0xff60], [0xffe0, 0xffe6], [0x1f300, 0x1f64f], [0x1f680, 0x1f6ff], [0x1f900, 0x1f9ff],
  [0x20000, 0x3fffd],
];

/** Columns that a character takes. */
function width(code, char) {
  if (code < 0x300) return 1;
  if (MARK.test(char)) return 0;
  return WIDE.some(([first, last]) => code >= first && code <= last) ? 2 : 1;
}

class Line {
  constructor(columns, drawn = PLAIN) {
    this.cells = new Array(columns).fill(" ");
    this.styles = new Array(columns).fill(drawn);
    this.dirty = true;
  }

  fit(columns) {
    while (this.cells.length < columns) {
      this.cells.push(" ");
      this.styles.push(PLAIN);
    }
    this.cells.length = columns;
    this.styles.length = columns;
    this.dirty = true;
  }

  erase(from, upto, drawn) {
    this.cells.fill(" ", from, upto);
    this.styles.fill(drawn, from, upto);
    this.dirty = true;
  }

  /** Pieces of one style each, the blank end beyond `upto` left off. */
  runs(upto = 0) {
    let end = this.cells.length;
    while (end > upto && this.cells[end - 1] === " " && this.styles[end - 1] === PLAIN) end -= 1;
    const found = [];
    for (let at = 0; at < end; ) {
      const from = at;
      while (at < end && this.styles[at] === this.styles[from]) at += 1;
      found.push({ from, end: at, style: this.styles[from] });
    }
    return found;
  }
}

const blank = (rows, columns) => Array.from({ length: rows }, () => new Line(columns));

export class Screen {
  /** `reply(text)` is how questions of the program are answered. */
  constructor(rows, columns, reply = () => {}) {
    this.rows = rows;
    this.columns = columns;
    this.reply = reply;
    this.decoder = new TextDecoder();
    this.reset();
  }

  reset() {
    this.lines = blank(this.rows, this.columns);
    this.past = [];
    this.other = null;
    this.row = 0;
    this.column = 0;
    this.style = PLAIN;
    this.saved = { row: 0, column: 0, style: PLAIN };
    this.top = 0;
    this.bottom = this.rows - 1;
    this.wraps = true;
    this.waits = false;
    this.visible = true;
    this.appKeys = false;
    this.pastes = false;
    this.drawing = false;
    this.take = this.ground;
    this.last = " ";
  }

  resize(rows, columns) {
    for (const lines of [this.lines, this.other && this.other.lines].filter(Boolean)) {
      for (const line of lines) line.fit(columns);
      while (lines.length < rows) lines.push(new Line(columns));
    }
    // The line with the cursor stays in sight, on the first screen too while the second is shown.
    const first = this.other ? this.other.saved : this;
    const { lines } = this.other || this;
    while (first.row >= rows && lines.length > rows) {
      this.keep(lines.shift());
      first.row -= 1;
    }
    this.lines.length = rows;
    lines.length = rows;
    // What was saved may be of a larger screen.
    for (const place of [this, this.saved, first]) {
      place.row = Math.min(place.row, rows - 1);
      place.column = Math.min(place.column, columns - 1);
    }
    this.rows = rows;
    this.columns = columns;
    this.waits = false;
    this.top = 0;
    this.bottom = rows - 1;
  }

  /** What a program wrote; characters may be cut anywhere. */
  feed(bytes) {
    for (const char of this.decoder.decode(bytes, { stream: true })) this.take(char);
  }

  keep(line) {
    this.past.push(line);
    if (this.past.length > MOST_PAST) this.past.shift();
  }

  /* Characters */

  ground(char) {
    const code = char.codePointAt(0);
    if (code >= 0x20 && code !== 0x7f) this.put(char, code);
    else this.control(char);
  }

  control(char) {
    if (char === "\n" || char === "\v" || char === "\f") this.down();
    else if (char === "\r") this.column = 0;
    else if (char === "\b") this.column = Math.max(0, this.column - 1);
    else if (char === "\t") this.column = Math.min(this.columns - 1, (this.column | 7) + 1);
    else if (char === "\x1b") this.take = this.escape;
    else return;
    this.waits = false;
  }

  put(char, code) {
    const shown = this.drawing && DRAWN[char] ? DRAWN[char] : char;
    const wide = width(code, shown);
    if (wide === 0) {
      const before = Math.max(0, this.column - (this.waits ? 0 : 1));
      const line = this.lines[this.row];
      if (line.cells[before].length < 16) line.cells[before] += shown;
      line.dirty = true;
      return;
    }
    if (this.waits || this.column + wide > this.columns) {
      if (this.wraps) {
        this.column = 0;
        this.down();
      } else this.column = Math.max(0, this.columns - wide);
      this.waits = false;
    }
    const line = this.lines[this.row];
    line.cells[this.column] = shown;
    line.styles[this.column] = this.style;
    if (wide === 2 && this.column + 1 < this.columns) {
      line.cells[this.column + 1] = "";
      line.styles[this.column + 1] = this.style;
    }
    line.dirty = true;
    this.last = char;
    this.column += wide;
    // The next line begins with the next character, not with this one.
    if (this.column >= this.columns) {
      this.column = this.columns - 1;
      this.waits = true;
    }
  }

  down() {
    if (this.row === this.bottom) this.scroll(1);
    else if (this.row < this.rows - 1) this.row += 1;
  }

  up() {
    if (this.row === this.top) this.scroll(-1);
    else if (this.row > 0) this.row -= 1;
  }

  /** Moves the region's lines up by so many, or down. */
  scroll(by) {
    const times = Math.min(Math.abs(by), this.bottom - this.top + 1);
    for (let i = 0; i < times; i += 1) {
      const [from, to] = by > 0 ? [this.top, this.bottom] : [this.bottom, this.top];
      const [gone] = this.lines.splice(from, 1);
      this.lines.splice(to, 0, this.empty());
      if (by > 0 && this.top === 0 && !this.other) this.keep(gone);
    }
  }

  /** A new line has the colour behind it that is set. */
  empty() {
    return new Line(this.columns, this.ground0());
  }

  ground0() {
    return this.style.bg === null ? PLAIN : style(null, this.style.bg, 0);
  }

  /* Sequences */

  escape(char) {
    this.take = this.ground;
    if (char === "[") {
      this.sequence = "";
      this.take = this.csi;
    } else if ("]PX^_".includes(char)) this.take = this.text;
    else if ("()*+".includes(char)) {
      const first = char === "(";
      this.take = (set) => {
        if (first) this.drawing = set === "0";
        this.take = this.ground;
      };
    } else if ("#% ".includes(char)) this.take = () => (this.take = this.ground);
    else if (char === "7") this.save();
    else if (char === "8") this.restore();
    else if (char === "D") this.down();
    else if (char === "M") this.up();
    else if (char === "E") {
      this.column = 0;
      this.down();
    } else if (char === "c") {
      const kept = this.past;
      this.reset();
      this.past = kept;
    }
  }

  /** Titles and the like, passed over up to their end. */
  text(char) {
    if (char === "\x07" || char === "\x9c") this.take = this.ground;
    else if (char === "\x1b") {
      this.take = (next) => {
        this.take = this.ground;
        if (next !== "\\") this.escape(next);
      };
    }
  }

  csi(char) {
    if (char >= "@" && char <= "~") {
      this.take = this.ground;
      this.obey(char, this.sequence);
    } else if (char === "\x1b") this.take = this.escape;
    else if (char < " ") this.control(char);
    else if (this.sequence.length < 128) this.sequence += char;
  }

  obey(final, text) {
    const mark = /^[<=>?]/.test(text) ? text[0] : "";
    if (/[ -/]/.test(text)) return;
    const given = text.slice(mark.length).split(/[;:]/, MOST_PARAMETERS);
    const numbers = given.map((one) => Math.min(Number.parseInt(one, 10) || 0, 9999));
    if (mark === "?" && (final === "h" || final === "l")) {
      for (const mode of numbers) this.mode(mode, final === "h");
    } else if (mark === ">" && final === "c") this.reply("\x1b[>0;0;0c");
    else if (mark === "" && final === "m") this.dress(numbers);
    else if (mark === "") this.act(final, numbers);
  }

  act(final, numbers) {
    const n = Math.max(1, numbers[0]);
    const go = (row, column) => this.go(row, column);
    const { row, column } = this;
    const acts = {
      A: () => go(row - n, column),
      B: () => go(row + n, column),
      C: () => go(row, column + n),
      D: () => go(row, column - n),
      E: () => go(row + n, 0),
      F: () => go(row - n, 0),
      G: () => go(row, n - 1),
      "`": () => go(row, n - 1),
      a: () => go(row, column + n),
      d: () => go(n - 1, column),
      e: () => go(row + n, column),
      H: () => go(n - 1, Math.max(1, numbers[1] || 1) - 1),
      f: () => go(n - 1, Math.max(1, numbers[1] || 1) - 1),
      I: () => go(row, ((column >> 3) + n) * 8),
      Z: () => go(row, Math.max(0, ((column + 7) >> 3) - n) * 8),
      J: () => this.eraseScreen(numbers[0]),
      K: () => this.eraseLine(numbers[0]),
      X: () => this.lines[row].erase(column, Math.min(this.columns, column + n), this.ground0()),
      L: () => this.shift(n),
      M: () => this.shift(-n),
      P: () => this.squeeze(-n),
      "@": () => this.squeeze(n),
      S: () => this.scroll(n),
      T: () => this.scroll(-n),
      b: () => this.repeat(n),
      r: () => this.region(numbers),
      s: () => this.save(),
      u: () => this.restore(),
      n: () => {
        if (numbers[0] === 5) this.reply("\x1b[0n");
        if (numbers[0] === 6) this.reply(`\x1b[${row + 1};${column + 1}R`);
      },
      c: () => this.reply("\x1b[?1;2c"),
    };
    if (acts[final]) acts[final]();
  }

  /** Once more, within a line's length: what takes long may not be asked for in a few bytes. */
  repeat(times) {
    const code = this.last.codePointAt(0);
    for (let i = Math.min(times, this.columns); i > 0; i -= 1) this.put(this.last, code);
  }

  go(row, column) {
    this.row = Math.max(0, Math.min(this.rows - 1, row));
    this.column = Math.max(0, Math.min(this.columns - 1, column));
    this.waits = false;
  }

  save() {
    this.saved = { row: this.row, column: this.column, style: this.style };
  }

  restore() {
    this.go(this.saved.row, this.saved.column);
    this.style = this.saved.style;
  }

  region([first, last]) {
    const top = Math.max(1, first) - 1;
    const bottom = Math.min(this.rows, last || this.rows) - 1;
    if (top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.go(0, 0);
  }

  eraseLine(what) {
    const from = what === 0 ? this.column : 0;
    const upto = what === 1 ? this.column + 1 : this.columns;
    this.lines[this.row].erase(from, upto, this.ground0());
    this.waits = false;
  }

  eraseScreen(what) {
    if (what === 3) return;
    const [from, upto] = what === 0 ? [this.row + 1, this.rows] : [0, what === 1 ? this.row : this.rows];
    for (let row = from; row < upto; row += 1) this.lines[row].erase(0, this.columns, this.ground0());
    if (what < 2) this.eraseLine(what);
  }

  /** Opens room for lines at the cursor, or closes some. */
  shift(by) {
    if (this.row < this.top || this.row > this.bottom) return;
    const times = Math.min(Math.abs(by), this.bottom - this.row + 1);
    for (let i = 0; i < times; i += 1) {
      const [from, to] = by > 0 ? [this.bottom, this.row] : [this.row, this.bottom];
      this.lines.splice(from, 1);
      this.lines.splice(to, 0, this.empty());
    }
    this.column = 0;
    this.waits = false;
  }

  /** Opens room for characters at the cursor, or closes some. */
  squeeze(by) {
    const line = this.lines[this.row];
    const { column, columns } = this;
    const times = Math.min(Math.abs(by), columns - column);
    const [to, from] = by > 0 ? [column + times, column] : [column, column + times];
    line.cells.copyWithin(to, from, columns);
    line.styles.copyWithin(to, from, columns);
    const opened = by > 0 ? column : columns - times;
    line.erase(opened, opened + times, this.ground0());
    this.waits = false;
  }

  mode(number, on) {
    if (number === 1) this.appKeys = on;
    else if (number === 7) this.wraps = on;
    else if (number === 25) this.visible = on;
    else if (number === 2004) this.pastes = on;
    else if (number === 1048) on ? this.save() : this.restore();
    else if (number === 47 || number === 1047 || number === 1049) this.turn(on, number === 1049);
  }

  /** To the second screen and back, as editors and pagers do. */
  turn(on, saves) {
    if (on === Boolean(this.other)) return;
    if (on) {
      if (saves) this.save();
      this.other = { lines: this.lines, saved: this.saved };
      this.lines = blank(this.rows, this.columns);
    } else {
      ({ lines: this.lines, saved: this.saved } = this.other);
      this.other = null;
      for (const line of this.lines) line.dirty = true;
      if (saves) this.restore();
    }
    this.top = 0;
    this.bottom = this.rows - 1;
  }

  /** Colours and the like. */
  dress(numbers) {
    let { fg, bg, flags } = this.style;
    for (let i = 0; i < numbers.length; i += 1) {
      const n = numbers[i];
      if (n === 0) [fg, bg, flags] = [null, null, 0];
      else if (FLAGS[n]) flags |= FLAGS[n];
      else if (ENDS[n]) flags &= ~ENDS[n];
      else if (n >= 30 && n <= 37) fg = n - 30;
      else if (n >= 90 && n <= 97) fg = n - 82;
      else if (n >= 40 && n <= 47) bg = n - 40;
      else if (n >= 100 && n <= 107) bg = n - 92;
      else if (n === 39) fg = null;
      else if (n === 49) bg = null;
      else if (n === 38 || n === 48) {
        const [colour, used] = mixed(numbers.slice(i + 1));
        if (n === 38) fg = colour ?? fg;
        else bg = colour ?? bg;
        i += used;
      }
    }
    this.style = style(fg, bg, flags);
  }
}

/** One of 256 colours by number, or by its parts; and how many numbers said so. */
function mixed([kind, ...rest]) {
  if (kind === 5 && rest.length > 0) return [Math.min(rest[0], 255), 2];
  if (kind === 2 && rest.length > 2) {
    const parts = rest.slice(0, 3).map((part) => Math.min(part, 255));
    return [`rgb(${parts.join(",")})`, 4];
  }
  return [null, rest.length + 1];
}

/** How a colour beyond the sixteen is painted. */
export function painted(colour) {
  if (typeof colour === "string") return colour;
  if (colour >= 232) {
    const grey = 8 + 10 * (colour - 232);
    return `rgb(${grey},${grey},${grey})`;
  }
  const level = (n) => (n ? 55 + 40 * n : 0);
  const cube = colour - 16;
  return `rgb(${level(Math.floor(cube / 36))},${level(Math.floor(cube / 6) % 6)},${level(cube % 6)})`;
}
