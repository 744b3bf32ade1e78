// The live feed: one connection for the whole dashboard, closed while the page is hidden, opened again by itself.

import { headers } from "./api.js";

const RETRY_MS = [500, 1000, 2000, 5000];

export class Live {
  #listeners = new Map();
  #abort = null;
  #tries = 0;
  #timer = 0;

  constructor() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
    this.#open();
  }

  /** Calls `listener` with every event of this kind (`overview`, `sample`, `state`); returns how to stop it. */
  on(kind, listener) {
    const all = this.#listeners.get(kind) || new Set();
    this.#listeners.set(kind, all.add(listener));
    return () => all.delete(listener);
  }

  /** Connects now instead of when it would try next. */
  again() {
    this.#tries = 0;
    this.#open();
  }

  #tell(kind, value) {
    for (const listener of this.#listeners.get(kind) || []) listener(value);
  }

  #close() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #open() {
    this.#close();
    const abort = (this.#abort = new AbortController());
    try {
      const answer = await fetch("/v1/live", { headers: headers({ accept: "text/event-stream" }), signal: abort.signal });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      this.#tries = 0;
      this.#tell("state", "connected");
      await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch {
      // told below
    }
    if (abort.signal.aborted) return;
    this.#tell("state", "away");
    this.#timer = setTimeout(() => this.#open(), RETRY_MS[Math.min(this.#tries++, RETRY_MS.length - 1)]);
  }

  async #read(reader) {
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#take(block);
    }
  }

  #take(block) {
    let kind = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!data) return;
    const value = JSON.parse(data);
    if (kind === "message" && value.kind) this.#tell(value.kind, value);
    else this.#tell(kind, value);
  }
}
