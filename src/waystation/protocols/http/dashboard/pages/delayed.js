// Delayed: which queues have messages whose time has not come, those messages in the order of their times, and those
// that will be published to topics.

import { del, get, path } from "../lib/api.js";
import { h, morph } from "../lib/dom.js";
import { bytes, count, duration, time } from "../lib/format.js";
import { follow } from "../lib/following.js";
import { messageDialog } from "../lib/message_dialog.js";
import { Pager, badge, button, card, confirmDialog, head, notice, searchBox, showDialog, table, toast, whole } from "../lib/widgets.js";

const EVERY_MS = 3000;
const SHOWN = 50;

export function open(view) {
  const queue = view.query.get("queue");
  if (queue) return openMessages(view, `Delayed in ${queue}`, { queue });
  if (view.query.get("topics")) return openMessages(view, "Delayed to topics", { topics: true });
  return openList(view);
}

const addressOf = (queue) => `#/delayed?queue=${encodeURIComponent(queue)}`;

function due(ms) {
  const left = ms - Date.now();
  return left > 0 ? `in ${duration(left)}` : "now";
}

// -- which queues ------------------------------------------------------------------------------------------------------

function openList(view) {
  let search = view.query.get("search") || "";
  const topics = h("div", {});
  const rows = h("div", {});
  const pager = new Pager(() => list.now());
  const list = follow(view, EVERY_MS,
    () => get("/v1/delayed", { search, after: pager.after, limit: SHOWN }, view.signal),
    ({ queues, to_topics: waiting, next, total }) => {
      morph(topics, waiting ? h("p", {}, h("a", { href: "#/delayed?topics=true" }, `${count(waiting)} scheduled to be published to topics`)) : waiting === null ? h("p", {}, h("a", { href: "#/delayed?topics=true" }, "Those scheduled to be published to topics")) : h("p", { class: "muted" }, "None is scheduled to be published to a topic."));
      morph(rows, table("Queues with delayed messages", [
        { title: "Queue", name: true, cell: (one) => h("a", { href: addressOf(one.queue) }, one.queue) },
        { title: "Delayed messages", number: true, cell: (one) => count(one.messages) },
      ], queues, { key: (one) => one.queue, none: search ? `No queue with “${search}” in its name has delayed messages.` : "No queue has delayed messages." }),
      pager.show(next, total, queues.length));
    });
  const changed = (text) => {
    search = text;
    pager.reset();
    view.setQuery({ search });
    list.now();
  };
  view.draw(
    head("Delayed messages"),
    h("p", { class: "muted" }, "Messages with a delay, and messages that failed and wait for retry."),
    list.problem,
    card("To topics", topics),
    card("In queues", h("div", { class: "filters" }, searchBox("Search", search, changed)), rows));
}

// -- the messages ------------------------------------------------------------------------------------------------------

function openMessages(view, title, query) {
  view.title(title);
  const rows = h("div", {});
  const pager = new Pager(() => list.now());
  const list = follow(view, EVERY_MS,
    () => get("/v1/delayed", { ...query, after: pager.after, limit: SHOWN }, view.signal),
    ({ messages, next, total }) => morph(rows, messageTable(messages, () => list.now()), pager.show(next, total, messages.length)));
  view.draw(
    head(title, [
      h("a", { class: "button", href: "#/delayed" }, "All delayed"),
      query.queue ? h("a", { class: "button", href: `#/queues/${encodeURIComponent(query.queue)}` }, "The queue") : null,
    ]),
    list.problem,
    card("The next due first", rows));
}

function messageTable(messages, changed) {
  const target = (one) => (one.topic ? h("a", { href: `#/topics/${encodeURIComponent(one.topic)}` }, one.topic) : one.queue);
  return table("Delayed messages", [
    { title: "Due", cell: (one) => whole(time(one.due_ms)) },
    { title: "Left", cell: (one) => whole(due(one.due_ms)) },
    { title: "Message", name: true, cell: (one) => (one.queue ? button(one.id, () => look(one, changed), { kind: "link" }) : one.id) },
    { title: "For", cell: target },
    { title: "Why", cell: (one) => badge(one.why === "retry" ? "retry" : "delayed", one.why === "retry" ? "warn" : "") },
    { title: "Priority", number: true, cell: (one) => count(one.priority ?? 0) },
    { title: "Deliveries", number: true, cell: (one) => count(one.deliveries ?? 0) },
    { title: "Size", number: true, cell: (one) => bytes(one.bytes) },
    { title: h("span", { class: "hidden" }, "Actions"), cell: (one) => button("Cancel", () => cancel(one, changed), { kind: "danger", label: `Cancel ${one.id}` }) },
  ], messages, { key: (one) => String(one.tag), none: "No delayed messages here." });
}

async function look(one, changed) {
  try {
    const message = await get(path`/v1/queues/${one.queue}/messages/${one.id}`);
    messageDialog(message, [["Cancel this message", "danger", () => cancel(one, changed)]]);
  } catch (error) {
    showDialog(`Message ${one.id}`, notice(error.message, "bad"));
  }
}

async function cancel(one, changed) {
  const where = one.topic ? `to topic ${one.topic}` : `in queue ${one.queue}`;
  const address = one.topic ? path`/v1/delayed/topics/${one.topic}/${one.id}` : path`/v1/queues/${one.queue}/messages/${one.id}`;
  const done = await confirmDialog("Cancel this message?", `Message ${one.id}, due ${due(one.due_ms)} ${where}, is never delivered.`, () => del(address), "Cancel the message");
  if (done) {
    toast(`Message ${one.id} is cancelled.`);
    await changed();
  }
  return done;
}
