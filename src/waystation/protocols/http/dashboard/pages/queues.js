// Queues: all of them, page by page; and one, with its figures, its consumers and its messages.

import { del, get, path, post, put } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { placeLink } from "../lib/deaths.js";
import { h, morph } from "../lib/dom.js";
import { ago, bytes, clock, count, duration, rate, short, stateName, time } from "../lib/format.js";
import { Trail, follow } from "../lib/following.js";
import { messageDialog, messageFields, messageOf } from "../lib/message_dialog.js";
import { glance } from "../lib/payload.js";
import { settingsFields, settingsList, settingsOf } from "../lib/queue_settings.js";
import { Pager, badge, button, card, confirmDialog, field, formDialog, head, notice, searchBox, stat, table, toast, whole } from "../lib/widgets.js";

const LIST_MS = 3000;
const ONE_MS = 2000;
const PEEKED = 25;

export function open(view) {
  return view.params.length ? openOne(view, view.params[0]) : openList(view);
}

const addressOf = (queue) => `#/queues/${encodeURIComponent(queue)}`;
const age = (oldest) => (oldest === null || oldest === undefined ? "–" : duration(oldest > 1e11 ? Math.max(0, Date.now() - oldest) : oldest));

// -- all queues --------------------------------------------------------------------------------------------------------

function openList(view) {
  let search = view.query.get("search") || "";
  const rows = h("div", {});
  const pager = new Pager(() => list.now());
  const list = follow(view, LIST_MS,
    () => get("/v1/queues", { search, after: pager.after, limit: 50 }, view.signal),
    ({ queues, next, total }) => morph(rows, queueTable(queues, search), pager.show(next, total, queues.length)));
  const changed = (text) => {
    search = text;
    pager.reset();
    view.setQuery({ search });
    list.now();
  };
  view.draw(
    head("Queues", [button("New queue", () => create(view), { kind: "primary" })]),
    h("div", { class: "filters" }, searchBox("Search", search, changed)),
    list.problem,
    card(null, rows));
}

function queueTable(queues, search) {
  return table("Queues", [
    { title: "Queue", name: true, cell: (one) => h("a", { href: addressOf(one.queue) }, one.queue) },
    { title: "Ready", number: true, cell: (one) => count(one.ready) },
    { title: "Delayed", number: true, cell: (one) => count(one.parked) },
    { title: "In flight", number: true, cell: (one) => count(one.held) },
    { title: "Oldest", number: true, cell: (one) => age(one.oldest_ms) },
    { title: "Put", number: true, cell: (one) => rate(one.rates?.put) },
    { title: "Delivered", number: true, cell: (one) => rate(one.rates?.deliver) },
    { title: "Acked", number: true, cell: (one) => rate(one.rates?.ack) },
    { title: "Consumers", number: true, cell: (one) => count(one.consumers) },
    { title: "Size", number: true, cell: (one) => bytes(one.bytes) },
  ], queues, { key: (one) => one.queue, none: search ? `No queue has “${search}” in its name.` : "There are no queues yet. Create one here, or put a message into one." });
}

async function create(view) {
  let made = null;
  await formDialog("New queue",
    [field({ label: "Name", name: "queue", required: true, maxlength: 255 }), settingsFields()],
    async (values) => {
      await put(path`/v1/queues/${values.queue}`, settingsOf(values));
      made = values.queue;
    },
    { action: "Create", wide: true });
  if (made === null) return;
  toast(`Queue ${made} is created.`);
  view.go(addressOf(made));
}

// -- one queue ---------------------------------------------------------------------------------------------------------

function openOne(view, queue) {
  view.title(queue);
  const at = path`/v1/queues/${queue}`;
  const figures = h("div", {});
  const settings = h("div", {});
  const pace = new Pace();
  let present = null;
  const change = button("Change settings", () => alter(at, queue, present, facts.now), { disabled: true }); // until they are known

  const facts = follow(view, ONE_MS, () => get(at, {}, view.signal), (info) => {
    present = info;
    change.disabled = false;
    pace.take(info);
    morph(figures, stats(info));
    morph(settings, settingsList(info.settings), deadLetterLink(info.settings));
  });
  const consumers = consumersCard(view, at);
  const inside = insideCard(view, queue, () => facts.now());
  const changed = () => Promise.all([facts.now(), inside.now()]);

  view.draw(
    head(queue, [
      button("Put a message", () => putMessage(at, queue, changed), { kind: "primary" }),
      button("Purge", () => purge(at, queue, present, changed)),
      button("Delete", () => remove(view, at, queue), { kind: "danger" }),
    ], badge("queue")),
    facts.problem, figures,
    h("div", { class: "grid" }, card("Messages per second", pace.rates.element), card("Messages in the queue", pace.depth.element)),
    consumers,
    inside.element,
    card("Settings", settings, h("p", { class: "actions" }, change)));
}

function stats(info) {
  return h("div", { class: "stats" },
    stat("Ready", count(info.ready), "can be delivered now"),
    stat("Delayed", count(info.parked), info.parked ? h("a", { href: `#/delayed?queue=${encodeURIComponent(info.queue)}` }, "when they are due") : "not due yet, or waiting for retry"),
    stat("In flight", count(info.held), "delivered, not acknowledged"),
    stat("Oldest", age(info.oldest_ms), "message in the queue"),
    stat("Consumers", count(info.consumers)),
    stat("Size", bytes(info.bytes)),
    stat("Dead letters", count(info.dead), "since the broker started"));
}

function deadLetterLink(settings) {
  if (settings.dead_letter_exchange !== null && settings.dead_letter_exchange !== undefined) {
    return h("p", {}, "Dead letters are published to the exchange ",
      h("a", { href: `#/routing?search=${encodeURIComponent(settings.dead_letter_exchange)}` }, settings.dead_letter_exchange || "(default)"), ".");
  }
  if (!settings.dead_letter) return h("p", { class: "muted" }, "Messages that run out of deliveries are deleted: the queue has no dead_letter.");
  if (settings.dead_letter.startsWith("topic:")) return h("p", {}, "Dead letters are sent to ", placeLink(settings.dead_letter), ".");
  return h("p", {}, h("a", { href: `#/dead-letters/${encodeURIComponent(settings.dead_letter)}` }, `Dead letters in ${settings.dead_letter}`));
}

/** The last ten minutes as this page saw them. The counters are the broker's, so a late answer changes no total. */
class Pace {
  constructor() {
    this.rates = new Chart("Messages per second", [{ name: "put", key: "put" }, { name: "delivered", key: "delivered" }, { name: "acked", key: "acked" }], rate);
    this.depth = new Chart("Messages in the queue", [{ name: "ready", key: "ready" }, { name: "delayed", key: "parked" }, { name: "in flight", key: "held" }], short);
    this.flow = new Trail(["put", "delivered", "acked"]);
    this.level = new Trail(["ready", "parked", "held"]);
    this.before = null;
    this.rates.set([], {});
  }

  take(info) {
    const now = Date.now();
    const before = this.before;
    this.before = { now, info };
    this.level.add(now, info);
    this.depth.set(this.level.times, this.level.values);
    if (now === before?.now) return;
    this.flow.add(now, before === null ? known(info.rates) : between(before, { now, info }));
    this.rates.set(this.flow.times, this.flow.values);
  }
}

/** The first point is the broker's own figure; the next ones are from the counters, which begin again when it restarts. */
const known = (rates) => ({ put: rates?.put, delivered: rates?.deliver, acked: rates?.ack });

function between(before, after) {
  const seconds = (after.now - before.now) / 1000;
  return Object.fromEntries(["put", "delivered", "acked"].map((key) => [key, Math.max(0, after.info[key] - before.info[key]) / seconds]));
}

function consumersCard(view, at) {
  const rows = h("div", {});
  const list = follow(view, LIST_MS, () => get(`${at}/consumers`, {}, view.signal), ({ consumers }) =>
    morph(rows, table("Consumers", [
      { title: "Consumer", name: true, cell: (one) => String(one.tag ?? one.consumer ?? "–") },
      { title: "Protocol", cell: (one) => one.door ?? "–" },
      { title: "Connection", wide: true, cell: (one) => (one.connection ? h("a", { href: `#/connections/${encodeURIComponent(one.connection)}` }, one.connection) : "–") },
      { title: "In flight", number: true, cell: (one) => count(one.held) },
      { title: "Prefetch", number: true, cell: (one) => (one.prefetch === 0 || one.prefetch === null ? "no limit" : count(one.prefetch)) },
      { title: "Since", cell: (one) => (one.since_ms ? ago(one.since_ms) : "–") },
    ], consumers, { key: (one) => `${one.connection} ${one.tag}`, none: "This queue has no consumers now." })));
  return card("Consumers", list.problem, rows);
}

// -- its messages ------------------------------------------------------------------------------------------------------

function insideCard(view, queue, changed) {
  const at = path`/v1/queues/${queue}`;
  const rows = h("div", {});
  const problem = h("div", {});
  let state = view.query.get("state") || "any";
  const pager = new Pager(() => now());
  const now = async () => {
    try {
      const { messages } = await get(`${at}/peek`, { state, after: pager.after, count: PEEKED }, view.signal);
      const next = messages.length === PEEKED ? String(messages[messages.length - 1].tag) : null;
      morph(problem);
      morph(rows, messageTable(messages, (message) => look(queue, message, async () => { await Promise.all([now(), changed()]); })),
        pager.show(next, null, messages.length), h("p", { class: "muted" }, `As of ${clock(Date.now())}, the oldest first.`));
    } catch (error) {
      if (!view.signal.aborted) morph(problem, notice(error.message, "bad"));
    }
  };
  const choice = field({ label: "State", name: "state", value: state, options: [["any", "any"], ["ready", "ready"], ["parked", "delayed"], ["held", "in flight"]] });
  choice.querySelector("select").onchange = (event) => {
    state = event.target.value;
    pager.reset();
    view.setQuery({ state: state === "any" ? "" : state });
    now();
  };
  now();
  const element = card("Messages",
    h("div", { class: "filters" }, choice, button("Refresh", () => { pager.reset(); now(); })), problem, rows);
  return { element, now };
}

function messageTable(messages, open) {
  return table("Messages", [
    { title: "Message", name: true, cell: (one) => button(one.id ?? `#${one.tag}`, () => open(one), { kind: "link" }) },
    { title: "State", cell: (one) => badge(stateName(one.state), { ready: "good", held: "accent", parked: "warn" }[one.state] || "") },
    { title: "Payload", wide: true, cell: (one) => h("code", {}, glance(one, 60)) },
    { title: "Priority", number: true, cell: (one) => String(one.priority ?? 0) },
    { title: "Deliveries", number: true, cell: (one) => count(one.deliveries) },
    { title: "Enqueued", cell: (one) => whole(time(one.taken_ms)) },
    { title: "Due", cell: (one) => whole(time(one.ready_at_ms)) },
  ], messages, { key: (one) => String(one.tag), none: "No message is in this state." });
}

function look(queue, message, changed) {
  messageDialog(message, [["Delete this message", "danger", async () => {
    const done = await confirmDialog("Delete this message?", `Message ${message.id} is deleted from queue ${queue}. This cannot be undone.`,
      () => del(path`/v1/queues/${queue}/messages/${message.id}`));
    if (done) {
      toast(`Message ${message.id} is deleted.`);
      await changed();
    }
    return done;
  }]]);
}

// -- what can be done --------------------------------------------------------------------------------------------------

async function putMessage(at, queue, changed) {
  let answer = null;
  const done = await formDialog(`Put a message into ${queue}`, messageFields(),
    async (values) => { answer = await post(`${at}/messages`, messageOf(values)); },
    { action: "Put", wide: true });
  if (!done) return;
  toast(answer.duplicates.length ? "A message with this id was put within the deduplication window: this one was dropped." : `Stored as ${answer.ids[0]}.`);
  await changed();
}

async function purge(at, queue, present, changed) {
  const there = present ? count(present.ready + present.parked) : "all";
  let gone = 0;
  const done = await confirmDialog(`Purge ${queue}?`, `${there} messages that are not in flight are deleted. This cannot be undone.`,
    async () => { gone = (await del(`${at}/messages`)).messages; }, "Purge");
  if (!done) return;
  toast(`${count(gone)} messages are deleted from ${queue}.`);
  await changed();
}

async function remove(view, at, queue) {
  const done = await confirmDialog(`Delete ${queue}?`, "The queue, its messages and its bindings are deleted. This cannot be undone.",
    () => del(at), "Delete", { type: queue });
  if (!done) return;
  toast(`Queue ${queue} is deleted.`);
  view.go("#/queues");
}

async function alter(at, queue, present, changed) {
  const { policy, own, ...settings } = present.settings;
  const done = await formDialog(`Settings of ${queue}`, [settingsFields(settings)],
    (values) => put(at, { ...settings, ...settingsOf(values) }, { alter: true }),
    { action: "Save", wide: true, text: policy ? `The policy ${policy} applies here and overrides the settings that it names.` : "" });
  if (!done) return;
  toast(`The settings of ${queue} are changed.`);
  await changed();
}
