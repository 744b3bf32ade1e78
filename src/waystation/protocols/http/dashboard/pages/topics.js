// Topics: all of them, page by page; with a name in the address, one of them (topic.js).

import { get, path, put } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { follow } from "../lib/following.js";
import { bytes, count, duration, rate } from "../lib/format.js";
import { badge, button, card, field, formDialog, head, loading, Pager, searchBox, table, toast } from "../lib/widgets.js";
import { openTopic } from "./topic.js";

const PAGE = 50;
const HOUR_MS = 3600e3;

export function open(view) {
  if (view.params.length) return openTopic(view, view.params[0]);
  let search = view.query.get("search") || "";
  let internal = view.query.get("internal") === "true";
  let shown = null;
  const pager = new Pager(() => list.now());
  const list = follow(view, 3000,
    () => get("/v1/topics", { search, internal: internal || "", after: pager.after, limit: PAGE }, view.signal),
    (found) => {
      shown = found;
      draw();
    });
  const changed = () => {
    pager.reset();
    view.setQuery({ search, internal: internal || "" });
    list.now();
  };
  const searching = searchBox("Search topics", search, (text) => {
    search = text;
    changed();
  });
  const own = field({ label: "The broker's own topics too", name: "internal", type: "checkbox", value: internal });
  own.querySelector("input").onchange = (event) => {
    internal = event.target.checked;
    changed();
  };
  const filters = h("div", { class: "filters" }, searching, own);

  function draw() {
    view.draw(
      head("Topics", [button("New topic", () => view.act(create), { kind: "primary" })]),
      keep(list.problem),
      card(null, keep(filters), shown === null ? loading() : [table("Topics", COLUMNS, shown.topics, {
        key: (topic) => topic.topic,
        none: search ? `No topic has “${search}” in its name.` : "There are no topics yet. Create one, or publish to one: that creates it.",
      }), pager.show(shown.next, shown.total, shown.topics.length)]));
  }

  async function create() {
    let made = "";
    const done = await formDialog("New topic", newTopicFields(), async (values) => {
      made = values.name.trim();
      await put(path`/v1/topics/${made}`, { partitions: Number(values.partitions), settings: settingsOf(values) });
    }, { action: "Create" });
    if (!done) return;
    toast(`Topic ${made} is created.`);
    view.go(`#/topics/${encodeURIComponent(made)}`);
  }

  draw();
}

const COLUMNS = [
  { title: "Name", name: true, cell: (topic) => [h("a", { href: link(topic.topic) }, topic.topic), topic.internal ? [" ", badge("internal")] : null] },
  { title: "Partitions", number: true, cell: (topic) => count(topic.partitions.length) },
  { title: "Offsets", number: true, cell: (topic) => count(messagesOf(topic)) },
  { title: "Size", number: true, cell: (topic) => bytes(bytesOf(topic)) },
  { title: "Published", number: true, cell: (topic) => rate(topic.rate) },
  { title: "Retention", cell: retention },
  { title: "Cleanup", cell: (topic) => topic.cleanup_policy ?? "–" },
];

export const link = (name) => `#/topics/${encodeURIComponent(name)}`;
export const messagesOf = (topic) => topic.messages ?? topic.partitions.reduce((all, one) => all + one.end_offset - one.start_offset, 0);
export const bytesOf = (topic) => topic.bytes ?? topic.partitions.reduce((all, one) => all + one.bytes, 0);

/** How long, and how much, a topic keeps. */
export function retention(topic) {
  if (topic.retention_ms === undefined) return "–";
  const time = topic.retention_ms < 0 ? "forever" : duration(topic.retention_ms);
  const most = topic.retention_messages >= 0 ? `, ${count(topic.retention_messages)} messages a partition` : "";
  return (topic.retention_bytes >= 0 ? `${time}, ${bytes(topic.retention_bytes)} a partition` : time) + most;
}

function newTopicFields() {
  return [
    field({ label: "Name", name: "name", required: true, maxlength: "249" }),
    field({ label: "Partitions", name: "partitions", type: "number", value: "1", min: "1", max: "10000", required: true }),
    field({
      label: "Cleanup", name: "cleanup", value: "", options: [
        ["", "the broker's default"], ["delete", "delete what is old"], ["compact", "keep the newest of each key"],
        ["compact,delete", "both"],
      ],
    }),
    field({ label: "Keep for hours", name: "hours", type: "number", min: "0", step: "any", hint: "empty: the broker's default" }),
    field({ label: "Keep messages", name: "messages", type: "number", min: "1", hint: "the newest of each partition; empty: any number" }),
  ];
}

function settingsOf(values) {
  const settings = {};
  if (values.cleanup) settings["cleanup.policy"] = values.cleanup;
  if (values.hours !== "") settings["retention.ms"] = String(Math.round(Number(values.hours) * HOUR_MS));
  if (values.messages) settings["waystation.retention.messages"] = values.messages;
  return settings;
}
