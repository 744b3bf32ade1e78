// One topic: its partitions, its messages, a form to publish, its settings.

import { del, get, patch, path, post } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { bytes, count, rate, time } from "../lib/format.js";
import { badge, button, card, confirmDialog, field, formDialog, head, stat, table, tabs, toast } from "../lib/widgets.js";
import { MessageBrowser } from "./topic_messages.js";
import { publishForm } from "./topic_publish.js";
import { settingsPanel } from "./topic_settings.js";
import { bytesOf, messagesOf, retention } from "./topics.js";

const MAX_ROWS = 500;
const TABS = [["partitions", "Partitions"], ["messages", "Messages"], ["publish", "Publish"], ["settings", "Settings"]];

export async function openTopic(view, name) {
  view.title(name);
  const address = path`/v1/topics/${name}`;
  let tab = TABS.some(([known]) => known === view.query.get("tab")) ? view.query.get("tab") : "partitions";
  let topic = await get(address, {}, view.signal);
  const speed = new Speed();
  const browser = new MessageBrowser(view, name, () => topic.partitions.length);
  const form = publishForm(name, () => topic.partitions.length);
  const settings = settingsPanel(view, name, refresh);
  const panels = {
    partitions: () => card("Partitions", topic.partitions.length > MAX_ROWS ? h("p", { class: "muted" }, `The first ${MAX_ROWS} of ${count(topic.partitions.length)}.`) : null,
      partitionTable(topic, speed, (one) => view.act(() => deleteBefore(one)))),
    messages: () => keep(browser.element),
    publish: () => keep(form),
    settings: () => keep(settings.element),
  };

  function draw() {
    view.draw(
      head(name, topic.internal ? [] : [button("Add partitions", () => view.act(addPartitions)), button("Delete topic", () => view.act(remove), { kind: "danger" })],
        topic.internal ? badge("internal") : null),
      h("div", { class: "stats" },
        stat("Messages", count(messagesOf(topic)), "by offsets: markers and aborted ones count"), stat("Size", bytes(bytesOf(topic))),
        stat("Published", rate(topic.rate ?? speed.total())), stat("Retention", retention(topic)),
        stat("Cleanup", topic.cleanup_policy ?? "–"), stat("Subscribers", count(topic.subscribers), topic.dropped ? `${count(topic.dropped)} missed` : ""),
        topic.created_ms === null ? null : stat("Created", time(topic.created_ms))),
      tabs(TABS, tab, choose, "Parts of the topic"),
      h("div", { role: "tabpanel", "aria-label": TABS.find(([known]) => known === tab)[1], "data-key": tab }, panels[tab]()));
  }

  function choose(chosen) {
    tab = chosen;
    view.setQuery({ tab: tab === "partitions" ? "" : tab });
    if (tab === "messages") browser.start();
    if (tab === "settings") settings.load();
    draw();
  }

  async function refresh() {
    topic = await get(address, {}, view.signal);
    speed.note(topic.partitions);
    draw();
  }

  async function addPartitions() {
    const now = topic.partitions.length;
    const input = field({
      label: "Partitions in all", name: "partitions", type: "number", value: String(now + 1), min: String(now + 1), required: true,
      hint: "keys may map to other partitions from then on; partitions cannot be removed",
    });
    const done = await formDialog(`Add partitions to ${name}`, [input], (values) => patch(address, { partitions: Number(values.partitions) }), { action: "Add" });
    if (done) await refresh();
  }

  async function remove() {
    const text = `The topic, its ${count(messagesOf(topic))} messages and the committed offsets of its groups are deleted. This cannot be undone.`;
    if (!await confirmDialog(`Delete topic ${name}?`, text, () => del(address), "Delete topic", { type: name })) return;
    toast(`Topic ${name} is deleted.`);
    view.go("#/topics");
  }

  async function deleteBefore(partition) {
    const input = field({
      label: "First offset to keep", name: "before", type: "number", value: String(partition.start_offset),
      min: String(partition.start_offset), max: String(partition.end_offset), required: true,
      hint: `${partition.end_offset} deletes all messages`,
    });
    const done = await formDialog(`Delete the beginning of partition ${partition.partition}`, [input], (values) =>
      post(`${address}/delete-records`, { partition: partition.partition, before_offset: Number(values.before) }),
    { action: "Delete records", kind: "danger", text: "Messages before this offset are deleted for everybody. This cannot be undone." });
    if (done) await refresh();
  }

  speed.note(topic.partitions);
  choose(tab);
  view.every(2000, refresh);
}

function partitionTable(topic, speed, deleteBefore) {
  return table("Partitions", [
    { title: "Partition", cell: (one) => String(one.partition) },
    { title: "Leader", number: true, cell: (one) => (one.leader === null ? "–" : `${one.leader} (epoch ${one.leader_epoch})`) },
    { title: "Start", number: true, cell: (one) => count(one.start_offset) },
    { title: "Last stable", number: true, cell: (one) => count(one.stable_offset) },
    { title: "High watermark", number: true, cell: (one) => count(one.high_watermark) },
    { title: "End", number: true, cell: (one) => count(one.end_offset) },
    { title: "Offsets", number: true, cell: (one) => count(one.end_offset - one.start_offset) },
    { title: "Size", number: true, cell: (one) => bytes(one.bytes) },
    { title: "Published", number: true, cell: (one) => rate(speed.of(one.partition)) },
    { title: "Actions", cell: (one) => button("Delete records…", () => deleteBefore(one), { kind: "link", label: `Delete records of partition ${one.partition}` }) },
  ], topic.partitions.slice(0, MAX_ROWS), { key: (one) => one.partition });
}

/** Messages per second of each partition, from its last two ends. */
class Speed {
  #last = null;
  #rates = [];

  note(partitions) {
    const now = performance.now();
    const ends = partitions.map((one) => one.end_offset);
    if (this.#last && now > this.#last.now) {
      const seconds = (now - this.#last.now) / 1000;
      this.#rates = ends.map((end, i) => (this.#last.ends[i] === undefined ? null : Math.max(0, end - this.#last.ends[i]) / seconds));
    }
    this.#last = { now, ends };
  }

  of(partition) {
    return this.#rates[partition] ?? null;
  }

  total() {
    return this.#rates.length ? this.#rates.reduce((all, one) => all + (one || 0), 0) : null;
  }
}
