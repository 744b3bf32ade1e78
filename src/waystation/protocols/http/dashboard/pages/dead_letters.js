// Dead letters: the queues and topics where they are; and one queue, with what happened to them and the redrive.

import { del, get, path, post } from "../lib/api.js";
import { deathsOf, placeLink } from "../lib/deaths.js";
import { fill, h, morph } from "../lib/dom.js";
import { ago, clock, count, time } from "../lib/format.js";
import { follow } from "../lib/following.js";
import { messageDialog } from "../lib/message_dialog.js";
import { glance } from "../lib/payload.js";
import { Pager, badge, bar, button, card, confirmDialog, empty, field, formDialog, head, notice, pairs, searchBox, table, toast, whole } from "../lib/widgets.js";

const LIST_MS = 5000;
const SUMMARY_MS = 10000;
const JOBS_MS = 1000;
const SHOWN = 25;
const MOST_CHOSEN = 1000;
const MOST_BARS = 12;
const SHOWN_SOURCES = 5;
/** What the list can be narrowed to, by clicking on a bar. */
const NARROWED = ["reason", "source", "error"];

export function open(view) {
  return view.params.length ? openPlace(view, view.params[0]) : openList(view);
}

// -- all places --------------------------------------------------------------------------------------------------------

function openList(view) {
  let search = view.query.get("search") || "";
  const rows = h("div", {});
  const pager = new Pager(() => list.now());
  const list = follow(view, LIST_MS,
    () => get("/v1/dead-letters", { search, after: pager.after, limit: 50 }, view.signal),
    ({ dead_letters: places, next, total }) => morph(rows, placeTable(places), pager.show(next, total, places.length)));
  const changed = (text) => {
    search = text;
    pager.reset();
    view.setQuery({ search });
    list.now();
  };
  view.draw(
    head("Dead letters"),
    h("p", { class: "muted" }, "Messages that ran out of deliveries, with their failure history. Fix the cause, then redrive them."),
    h("div", { class: "filters" }, searchBox("Search", search, changed)),
    list.problem,
    card(null, rows));
}

function placeTable(places) {
  return table("Dead-letter queues", [
    { title: "Dead-letter queue", name: true, cell: ({ target }) => (target.startsWith("topic:") ? placeLink(target) : h("a", { href: `#/dead-letters/${encodeURIComponent(target)}` }, target)) },
    { title: "Messages", number: true, cell: ({ messages }) => (messages ? badge(count(messages), "warn") : count(messages)) },
    { title: "From", wide: true, cell: ({ sources, source_count: all }) => sourcesOf(sources, all ?? sources.length) },
  ], places, { key: ({ target }) => target, none: "No queue has a dead-letter queue. Set dead_letter on a queue, and messages that run out of deliveries are kept." });
}

function sourcesOf(sources, all) {
  const shown = sources.slice(0, SHOWN_SOURCES);
  return h("span", {}, shown.map((source, i) => [i ? ", " : "", placeLink(source)]), all > shown.length ? ` and ${count(all - shown.length)} more` : "");
}

// -- one place ---------------------------------------------------------------------------------------------------------

function openPlace(view, queue) {
  view.title(queue);
  const at = path`/v1/dead-letters/${queue}`;
  const asked = Object.fromEntries(["filter", ...NARROWED].map((name) => [name, view.query.get(name) || ""]));
  const place = { view, queue, at, asked, chosen: new Set() };
  const letters = lettersCard(place);
  const summary = summaryCards(place, letters.narrow);
  const jobs = jobsCard(place, () => { letters.now(); summary.now(); });
  place.changed = () => Promise.all([letters.now(), summary.now(), jobs.now()]);
  view.draw(
    head(queue, [
      h("a", { class: "button", href: `#/queues/${encodeURIComponent(queue)}` }, "As a queue"),
      button("Redrive all…", () => redriveDialog(place, "all dead letters here", {}), { kind: "primary" }),
    ], badge("dead letters", "warn")),
    jobs.element,
    summary.element,
    letters.element);
}

function summaryCards({ view, at, queue }, narrow) {
  const cards = h("div", {});
  const read = follow(view, SUMMARY_MS, () => get(`${at}/summary`, {}, view.signal).catch(notThere), (found) => {
    if (found === null) {
      morph(cards, notice(`No dead letters yet: there is no queue ${queue}. It is created with its first dead letter.`));
      return;
    }
    const part = found.looked_at < found.total ? `the newest ${count(found.looked_at)} of ${count(found.total)} messages` : `${count(found.total)} messages`;
    const span = found.oldest_ms ? `; oldest ${ago(found.oldest_ms)}, newest ${ago(found.newest_ms)}` : "";
    morph(cards,
      h("p", { class: "muted" }, `Based on ${part}${span}.`),
      h("div", { class: "grid thirds" }, NARROWED.map((name) => tally(`By ${name}`, found[`by_${name}`], (value) => narrow({ [name]: value })))));
  });
  return { element: h("div", {}, read.problem, cards), now: read.now };
}

/** A queue of dead letters that nothing has come to is no fault. */
function notThere(error) {
  if (error.status === 404) return null;
  throw error;
}

/** Counts by name, the highest first, as bars; a name narrows the list below to those. */
function tally(title, counts, narrow) {
  const all = Object.entries(counts || {}).sort(([, a], [, b]) => b - a);
  const high = all.length ? all[0][1] : 0;
  const more = all.length > MOST_BARS ? h("p", { class: "muted" }, `and ${all.length - MOST_BARS} more`) : null;
  return card(title, table(title, [
    { title: "What", name: true, cell: ([name]) => button(name, () => narrow(name), { kind: "link", label: `Only ${name}` }) },
    { title: "Messages", number: true, cell: ([, n]) => count(n) },
    { title: "Share", cell: ([name, n]) => bar(n, high, { label: `${name || "none"}: ${n}` }) },
  ], all.slice(0, MOST_BARS), { key: ([name]) => `=${name}`, none: "Nothing." }), more);
}

// -- the dead letters --------------------------------------------------------------------------------------------------

function lettersCard(place) {
  const { view, at, chosen } = place;
  const rows = h("div", {});
  const problem = h("div", {});
  const choice = h("div", { class: "actions", role: "status" });
  const pager = new Pager(() => now());
  let found = { messages: [], next: null };
  const look = (message) => messageDialog(message, [
    ["Redrive this one…", "primary", () => redriveDialog(place, message.id, { message_ids: [message.id] })],
  ]);
  const draw = () => {
    morph(rows, letterTable(found, chosen, draw, look), pager.show(found.next === null ? null : String(found.next), null, found.messages.length),
      h("p", { class: "muted" }, `As of ${clock(Date.now())}, the oldest first.`));
    morph(choice, choiceOf(place, found.messages, draw));
  };
  const now = async () => {
    try {
      found = await get(at, { ...place.asked, after: pager.after, count: SHOWN }, view.signal).catch(notThere) ?? { messages: [], next: null };
      fill(problem);
      draw();
    } catch (error) {
      if (!view.signal.aborted) morph(problem, notice(error.message, "bad"));
    }
  };
  const form = h("div", {});
  const narrow = (asked) => {
    Object.assign(place.asked, asked);
    view.setQuery(place.asked);
    chosen.clear();
    pager.reset();
    fill(form, filterForm(place.asked, narrow));
    return now();
  };
  fill(form, filterForm(place.asked, narrow));
  place.forget = () => { chosen.clear(); draw(); };
  now();
  return { element: card("Messages", form, problem, choice, rows), now, narrow };
}

function filterForm(asked, narrow) {
  const input = field({ label: "Filter", name: "filter", value: asked.filter, placeholder: "json.total >= 1000 and headers.region = 'eu'", hint: "an expression over json, headers, key, id…; empty: all" });
  const narrowed = NARROWED.filter((name) => asked[name]);
  return [
    h("form", {
      class: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        narrow({ filter: event.target.elements.filter.value.trim() });
      },
    }, input, h("button", { type: "submit" }, "Filter")),
    narrowed.length ? h("p", { class: "actions" }, narrowed.map((name) => [
      badge(`${name}: ${asked[name]}`, "accent"), button("Any", () => narrow({ [name]: "" }), { kind: "quiet", label: `Any ${name}` }),
    ])) : null,
  ];
}

function choiceOf(place, messages, draw) {
  const { chosen, asked } = place;
  const narrowed = NARROWED.some((name) => asked[name]);
  const selectAll = async () => {
    try {
      await collect(place);
    } catch (error) {
      toast(error.message);
    }
    draw();
  };
  return [
    h("span", {}, chosen.size ? `${count(chosen.size)} selected` : "None selected"),
    messages.length ? button("Select these", () => { for (const { id } of messages) choose(chosen, id, true); draw(); }, { kind: "quiet" }) : null,
    narrowed || asked.filter ? button("Select all that match", selectAll, { kind: "quiet" }) : null,
    chosen.size ? button("Select none", () => { chosen.clear(); draw(); }, { kind: "quiet" }) : null,
    button("Redrive the selected…", () => redriveDialog(place, `${count(chosen.size)} selected`, { message_ids: [...chosen] }), { disabled: !chosen.size }),
    asked.filter && !narrowed ? button("Redrive all that match…", () => redriveDialog(place, `all that match ${asked.filter}`, { filter: asked.filter })) : null,
  ];
}

function choose(chosen, id, wanted) {
  if (!wanted) chosen.delete(id);
  else if (chosen.size < MOST_CHOSEN) chosen.add(id);
  else toast(`More than ${MOST_CHOSEN} are redriven by a filter, not one by one.`);
}

/** Selects everything that matches, page by page, up to what can be redriven one by one. */
async function collect({ view, at, asked, chosen }) {
  let after = "";
  while (after !== null && chosen.size < MOST_CHOSEN) {
    const found = await get(at, { ...asked, after, count: 100 }, view.signal);
    for (const { id } of found.messages.slice(0, MOST_CHOSEN - chosen.size)) chosen.add(id);
    after = found.next;
  }
  if (after !== null) toast(`The first ${MOST_CHOSEN} are selected.`);
}

function letterTable({ messages, next }, chosen, draw, look) {
  const one = (message) => h("input", {
    type: "checkbox", "aria-label": `Select ${message.id}`, checked: chosen.has(message.id),
    onchange: (event) => { choose(chosen, message.id, event.target.checked); draw(); },
  });
  const last = (message) => deathsOf(message)[0] || {};
  if (!messages.length) return empty(next === null ? "No dead letters here." : "None so far; there are more to search.");
  return table("Dead letters", [
    { title: h("span", { class: "hidden" }, "select"), cell: one },
    { title: "Message", name: true, cell: (message) => button(message.id, () => look(message), { kind: "link" }) },
    { title: "From", cell: (message) => placeLink(last(message).queue) },
    { title: "Why", cell: (message) => whole(last(message).reason ?? "–") },
    { title: "Died", cell: (message) => whole(last(message).time ? time(last(message).time) : "–") },
    { title: "Error", wide: true, cell: (message) => h("code", {}, String(last(message).error ?? "–").slice(0, 120)) },
    { title: "Payload", wide: true, cell: (message) => h("code", {}, glance(message, 60)) },
  ], messages, { key: (message) => String(message.tag) });
}

// -- redrive -----------------------------------------------------------------------------------------------------------

/** `which`: the part of the request that says which of them. Resolves to whether it was started. */
function redriveDialog(place, what, which) {
  const wish = (values) => ({ ...which, to: values.to || null, rate: Number(values.rate || 0), limit: Number(values.limit || 0) });
  const preview = h("div", { role: "status" });
  const form = () => preview.closest("form");
  const dry = async () => {
    const values = Object.fromEntries(new FormData(form()));
    try {
      const found = await post(`${place.at}/redrive`, { ...wish(values), dry_run: true });
      fill(preview, previewOf(found, values.to));
    } catch (error) {
      fill(preview, notice(error.message, "bad"));
    }
  };
  return formDialog(`Redrive ${what}`, [
    h("div", { class: "fields" },
      field({ label: "To", name: "to", placeholder: "the queue each one died in", hint: "another queue, or topic:NAME" }),
      field({ label: "Maximum per second", name: "rate", type: "number", min: 0, step: "any", placeholder: "no limit" }),
      field({ label: "Maximum number", name: "limit", type: "number", min: 0, step: 1, placeholder: "no limit" })),
    preview,
    h("p", {}, button("Dry run", dry)),
  ], async (values) => {
    const { job } = await post(`${place.at}/redrive`, { ...wish(values), dry_run: false }, { background: true });
    toast(`The redrive has started (job ${job}).`);
    place.forget();
    await place.changed();
  }, { action: "Redrive", wide: true, text: "Redriven messages start over: delivery count 0, failure history kept." });
}

function previewOf(found, to) {
  const targets = Object.entries(found.targets || {}).sort(([, a], [, b]) => b - a);
  return notice(h("div", {},
    h("p", {}, `${count(found.matched)} would be moved ${targets.length ? "to" : to ? `to ${to}` : "back to where they died"}`, targets.length ? ":" : "."),
    targets.length ? pairs(targets.map(([name, n]) => [name, count(n)])) : null,
    found.skipped ? h("p", {}, `${count(found.skipped)} have no queue to return to, and would stay.`) : null));
}

// -- jobs --------------------------------------------------------------------------------------------------------------

function jobsCard(place, moved) {
  const rows = h("div", {});
  let before = "";
  const read = follow(place.view, JOBS_MS, () => get("/v1/jobs", {}, place.view.signal), ({ jobs }) => {
    const ours = jobs.filter((job) => job.kind === "redrive" && job.target === place.queue);
    morph(rows, ours.length ? card("Redrives", ours.map((job) => jobView(job, read.now))) : null);
    const now = ours.map((job) => `${job.job} ${job.moved}`).join();
    if (before && now !== before) moved();
    before = now;
  });
  return { element: h("div", {}, read.problem, rows), now: read.now };
}

function jobView(job, changed) {
  const tone = { running: "accent", done: "good", failed: "bad", cancelled: "warn" }[job.state] || "";
  const figure = job.total ? `${count(job.moved)} of ${count(job.total)} redriven` : `${count(job.moved)} redriven`;
  const cancel = () => confirmDialog(`Stop job ${job.job}?`, "Messages that were redriven stay redriven; the others stay here.",
    () => del(path`/v1/jobs/${job.job}`), "Stop").then((done) => done && changed());
  return h("div", { "data-key": String(job.job), role: "group", "aria-label": `Job ${job.job}` },
    h("p", { class: "actions" },
      badge(job.state, tone), h("span", {}, figure), job.skipped ? h("span", { class: "muted" }, `${count(job.skipped)} skipped`) : null,
      h("span", { class: "muted" }, `started ${clock(job.started_ms)}`),
      job.state === "running" ? button("Stop", cancel, { label: `Stop job ${job.job}` }) : null),
    job.state === "running" ? h("progress", { "aria-label": figure, max: job.total || null, value: job.total ? job.moved : null }) : null,
    job.error ? notice(job.error, "bad") : null);
}
