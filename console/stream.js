// Server-sent events out of bytes as they come, for pages and for the worker alike.

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
    if (data) this.take(kind, JSON.parse(data), id);
  }
}
