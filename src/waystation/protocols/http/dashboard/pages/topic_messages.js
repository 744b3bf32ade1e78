// The message browser of a topic: the newest, from an offset or a time on, or those with a key, an id, a header or a text.
// What was asked for stands in the address, so that a link or a reload shows the same.

import { get, path } from "../lib/api.js";
import { fill, h, morph } from "../lib/dom.js";
import { count, time } from "../lib/format.js";
import { messageDialog } from "../lib/message_dialog.js";
import { glance, messageLink } from "../lib/payload.js";
import { button, card, field, notice, table, valuesOf } from "../lib/widgets.js";

const PAGE = 50;
const MAX_ROWS = 1000;
const WAYS = [
  ["newest", "the newest"], ["offset", "from an offset on"], ["time", "from a time on"], ["key", "with a key"],
  ["id", "with an id"], ["header", "with a header"], ["text", "that have a text in them"],
];
const ASKED = {
  offset: { label: "Offset", type: "number", min: "0", value: "0", required: true },
  time: { label: "Time", type: "datetime-local", step: "1", required: true },
  key: { label: "Key", required: true },
  id: { label: "Id", required: true },
  header: { label: "Header", placeholder: "name=value", pattern: "[^=]+=.*", required: true },
  text: { label: "Text", required: true },
};

export class MessageBrowser {
  #started = false;
  #rows = [];
  #more = null;
  #turn = 0;
  #said = "";
  #error = "";

  /** `partitions()` tells how many there are now. */
  constructor(view, topic, partitions) {
    this.view = view;
    this.topic = topic;
    this.partitions = partitions;
    this.asked = h("div", { class: "filters" });
    this.form = h("form", { "aria-label": "Which messages", onsubmit: (event) => this.#submit(event) }, this.asked);
    this.results = h("div", {});
    this.element = card("Messages", this.form, this.results);
  }

  /** Called when it is first seen. */
  start() {
    if (this.#started) return;
    this.#started = true;
    const query = this.view.query;
    const way = WAYS.some(([known]) => known === query.get("show")) ? query.get("show") : "newest";
    this.#drawForm(way, query.get("value") || "", query.get("partition") || "");
    this.#look();
  }

  #drawForm(way, value, partition) {
    const ways = field({ label: "Show messages", name: "show", value: way, options: WAYS });
    ways.querySelector("select").onchange = (event) => {
      this.#drawForm(event.target.value, "", valuesOf(this.form).partition || "");
      this.form.querySelector('[name="value"], [type="submit"]').focus();
    };
    const all = way === "offset" ? [] : [["", "all"]];
    const numbers = Array.from({ length: Math.min(this.partitions(), 1000) }, (_, i) => [String(i), String(i)]);
    const wanted = partition || (all.length ? "" : "0");
    fill(this.asked, ways,
      way in ASKED ? field({ name: "value", ...ASKED[way], ...(value ? { value } : {}) }) : null,
      way === "newest" || way === "id" ? null : field({ label: "Partition", name: "partition", value: wanted, options: [...all, ...numbers] }),
      h("button", { type: "submit", class: "primary" }, way === "newest" ? "Show again" : "Show"));
  }

  #submit(event) {
    event.preventDefault();
    const { show, value = "", partition = "" } = valuesOf(this.form);
    this.view.setQuery({ show: show === "newest" ? "" : show, value, partition });
    this.#look();
  }

  #look() {
    this.#rows = [];
    this.#go(this.#first());
  }

  /** The first page of what the form asks for: a function that answers {messages, more, said}. */
  #first() {
    const { show, value = "", partition = "" } = valuesOf(this.form);
    const address = path`/v1/topics/${this.topic}`;
    if (show === "newest") {
      return async () => {
        const found = await get(`${address}/history`, { count: PAGE }, this.view.signal);
        return { messages: found.messages.reverse(), more: null, said: "" };
      };
    }
    if (show === "offset") return this.#reading(address, { partition, offset: value });
    if (show === "time") return this.#searching(address, { partition, from_ms: new Date(value).getTime() });
    return this.#searching(address, { partition, [show]: value });
  }

  #reading(address, query) {
    return async () => {
      const found = await get(`${address}/messages`, { ...query, count: PAGE }, this.view.signal);
      const next = { partition: query.partition, offset: found.next_offset };
      const more = found.next_offset < found.end_offset ? this.#reading(address, next) : null;
      return { messages: found.messages, more, said: "" };
    };
  }

  #searching(address, query) {
    return async () => {
      const found = await get(`${address}/search`, { ...query, limit: PAGE }, this.view.signal);
      const more = found.done || !found.cursor ? null : this.#searching(address, { ...query, cursor: found.cursor });
      return { messages: found.messages, more, scanned: found.scanned };
    };
  }

  /** Reads on until there is something to show, or nothing more; a newer question ends an older one. */
  async #go(step) {
    const turn = ++this.#turn;
    const before = this.#rows.length;
    let looked = 0;
    this.#error = "";
    this.#more = step;
    try {
      do {
        this.#said = looked ? `looked at ${count(looked)} messages…` : "looking…";
        this.#draw(true);
        const found = await this.#more();
        if (turn !== this.#turn) return;
        looked += found.scanned || 0;
        this.#rows.push(...found.messages);
        this.#more = found.more;
      } while (this.#more && this.#rows.length === before);
      this.#said = looked ? `looked at ${count(looked)} messages` : "";
    } catch (error) {
      if (turn !== this.#turn || error.name === "AbortError") return;
      this.#said = "";
      this.#error = error.message;
    }
    this.#draw(false);
  }

  #stop() {
    this.#turn += 1;
    this.#said = "stopped";
    this.#draw(false);
  }

  #draw(busy) {
    const full = this.#rows.length >= MAX_ROWS;
    morph(this.results,
      this.#error ? notice(this.#error, "bad") : null,
      this.#rows.length || !busy ? table("Messages", this.#columns(), this.#rows, { key: placeOf, none: "No such message." }) : null,
      h("div", { class: "pager" },
        h("span", { role: "status" }, full ? `${count(this.#rows.length)} messages are shown; narrow the search to see others` : this.#said),
        busy && this.#said !== "looking…" ? button("Stop", () => this.#stop()) : null,
        !busy && this.#more && !full ? button("More", () => this.#go(this.#more)) : null));
  }

  #columns() {
    return [
      { title: "Partition", cell: (one) => String(one.partition) },
      { title: "Offset", number: true, cell: (one) => h("a", { href: messageLink(one) }, String(one.offset)) },
      { title: "Time", cell: (one) => h("span", { class: "nobreak" }, time(one.timestamp_ms ?? one.taken_ms)) },
      { title: "Key", wide: true, cell: (one) => one.key ?? (one.key_base64 ? `${one.key_base64} (base64)` : "–") },
      { title: "Value", wide: true, cell: (one) => button(glance(one), () => messageDialog(one), { kind: "link mono" }) },
    ];
  }
}

const placeOf = (message) => `${message.partition}@${message.offset}`;
