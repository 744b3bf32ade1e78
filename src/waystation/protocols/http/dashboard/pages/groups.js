// Groups and subscriptions: who reads what, how far they are behind, and from where they continue.

import { del, get, path, post } from "../lib/api.js";
import { h, morph } from "../lib/dom.js";
import { count, time } from "../lib/format.js";
import { follow } from "../lib/following.js";
import { Pager, badge, bar, button, card, confirmDialog, field, formDialog, head, searchBox, stat, table, toast, whole } from "../lib/widgets.js";

const LIST_MS = 3000;
const ONE_MS = 2000;
const SHOWN_PARTITIONS = 500;
const KINDS = [["", "all"], ["classic", "classic"], ["consumer", "consumer"], ["share", "share"], ["shared", "shared subscription"]];
const STATES = [["", "all"], ["stable", "stable"], ["empty", "empty"], ["dead", "dead"]];

export function open(view) {
  return view.params.length ? openOne(view, view.params[0]) : openList(view);
}

const addressOf = (group) => `#/groups/${encodeURIComponent(group)}`;
const topicLink = (topic) => h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, topic);

function stateBadge(state) {
  const word = String(state || "unknown");
  const tone = { stable: "good", empty: "", dead: "bad" }[word.toLowerCase()];
  return badge(word, tone ?? "warn");
}

// -- all groups --------------------------------------------------------------------------------------------------------

function openList(view) {
  const asked = { search: view.query.get("search") || "", kind: view.query.get("kind") || "", state: view.query.get("state") || "" };
  const rows = h("div", {});
  const pager = new Pager(() => list.now());
  const list = follow(view, LIST_MS,
    () => get("/v1/groups", { ...asked, after: pager.after, limit: 50 }, view.signal),
    ({ groups, next, total }) => morph(rows, groupTable(groups), pager.show(next, total, groups.length)));
  const changed = (name, value) => {
    asked[name] = value;
    pager.reset();
    view.setQuery({ [name]: value });
    list.now();
  };
  const choice = (label, name, options) => {
    const box = field({ label, name, value: asked[name], options });
    box.querySelector("select").onchange = (event) => changed(name, event.target.value);
    return box;
  };
  view.draw(
    head("Groups and subscriptions"),
    h("div", { class: "filters" }, searchBox("Search", asked.search, (text) => changed("search", text)), choice("Kind", "kind", KINDS), choice("State", "state", STATES)),
    list.problem,
    card(null, rows));
}

function groupTable(groups) {
  const high = Math.max(0, ...groups.map((group) => group.lag ?? 0));
  return table("Groups", [
    { title: "Group", name: true, cell: (one) => h("a", { href: addressOf(one.group) }, one.group) },
    { title: "Kind", cell: (one) => one.kind },
    { title: "State", cell: (one) => stateBadge(one.state) },
    { title: "Members", number: true, cell: (one) => count(one.members) },
    { title: "Lag", number: true, cell: (one) => count(one.lag) },
    { title: "Behind", cell: (one) => bar(one.lag ?? 0, high, { tone: one.lag ? "warn" : "", label: `lag of ${one.group}: ${count(one.lag)}` }) },
    { title: "Topics", wide: true, cell: (one) => topicsOf(one.topics || []) },
  ], groups, { key: (one) => one.group, none: "No groups. A consumer with a group id, or a subscription with a name, creates one." });
}

function topicsOf(topics) {
  return h("span", {}, topics.slice(0, 4).map((topic, i) => [i ? ", " : "", topicLink(topic)]), topics.length > 4 ? ` and ${topics.length - 4} more` : "");
}

// -- one group ---------------------------------------------------------------------------------------------------------

function openOne(view, group) {
  view.title(group);
  const at = path`/v1/groups/${group}`;
  const figures = h("div", {});
  const members = h("div", {});
  const partitions = h("div", {});
  const history = h("div", {});
  const beside = h("span", {});
  let present = null;
  const change = button("Reset offsets", () => reset(at, present, facts.now), { kind: "primary", disabled: true }); // until they are known
  const facts = follow(view, ONE_MS, () => get(at, {}, view.signal), (info) => {
    present = info;
    change.disabled = false;
    morph(beside, stateBadge(info.state), " ", badge(info.kind));
    morph(figures, stats(info));
    morph(members, memberTable(info.members));
    morph(partitions, lagTable(info.partitions));
    morph(history, timeline(info.history || []));
  });
  view.draw(
    head(group, [
      change,
      button("Delete", () => remove(view, at, group), { kind: "danger" }),
    ], beside),
    facts.problem, figures,
    card("Members", members),
    card("Lag by partition", partitions),
    card("State history", history));
}

function stats(info) {
  return h("div", { class: "stats" },
    stat("Members", count(info.members.length)),
    stat("Lag", info.partitions.length || info.lag ? count(info.lag) : "–", info.redriven ? `messages behind, ${count(info.redriven)} of them redriven` : "messages behind, in all"),
    stat("Partitions", count(info.partitions.length)),
    stat("Topics", count(new Set(info.partitions.map(({ topic }) => topic)).size)),
    info.assignor ? stat("Assignor", info.assignor) : null,
    stat("Generation", count(info.generation)),
    stat("Coordinator", `node ${info.coordinator}`));
}

function memberTable(members) {
  return table("Members", [
    { title: "Member", name: true, cell: (one) => h("span", { class: "mono" }, one.member) },
    { title: "Client", cell: (one) => (one.instance ? `${one.client} (static: ${one.instance})` : one.client || "–") },
    { title: "Host", cell: (one) => one.host || "–" },
    { title: "Assignment", wide: true, cell: (one) => assignmentOf(one.assignment || []) },
  ], members, { key: (one) => one.member, none: "This group has no members now." });
}

function assignmentOf(assignment) {
  if (!assignment.length) return "–";
  return h("span", {}, assignment.map(({ topic, partitions }, i) => [i ? "; " : "", topicLink(topic), ` ${runsOf(partitions)}`]));
}

/** 0, 1, 2, 5 as "0–2, 5" */
function runsOf(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

function lagTable(all) {
  const partitions = [...all].sort((a, b) => a.topic.localeCompare(b.topic) || a.partition - b.partition);
  const high = Math.max(0, ...partitions.map(({ lag }) => lag ?? 0));
  return [
    table("Lag by partition", [
      { title: "Topic", name: true, cell: (one) => topicLink(one.topic) },
      { title: "Partition", number: true, cell: (one) => String(one.partition) },
      { title: "Behind", cell: (one) => bar(one.lag ?? 0, high, { tone: one.lag ? "warn" : "", label: `lag of ${one.topic} ${one.partition}: ${count(one.lag)}` }) },
      { title: "Lag", number: true, cell: (one) => count(one.lag) },
      { title: "Committed", number: true, cell: (one) => (one.committed === null || one.committed < 0 ? "–" : count(one.committed)) },
      { title: "Start", number: true, cell: (one) => count(one.start) },
      { title: "End", number: true, cell: (one) => count(one.end) },
      { title: "Member", wide: true, cell: (one) => h("span", { class: "mono" }, one.member || "–") },
    ], partitions.slice(0, SHOWN_PARTITIONS), { key: (one) => `${one.topic} ${one.partition}`, none: "It has no offsets, and nothing is assigned." }),
    partitions.length > SHOWN_PARTITIONS ? h("p", { class: "muted" }, `The first ${SHOWN_PARTITIONS} of ${count(partitions.length)} partitions.`) : null,
  ];
}

function timeline(history) {
  return table("State history, the latest first", [
    { title: "When", cell: (one) => whole(time(one.time_ms)) },
    { title: "State", cell: (one) => stateBadge(one.state) },
    { title: "Members", number: true, cell: (one) => count(one.members) },
    { title: "Why", wide: true, cell: (one) => one.why || "–" },
  ], [...history].reverse(), { none: "Nothing has happened since the broker started." });
}

// -- what can be done --------------------------------------------------------------------------------------------------

const PLACES = [
  ["earliest", "the earliest message"], ["latest", "the end: only new messages"],
  ["offset", "an offset…"], ["back", "a number of messages back…"], ["ago", "an age…"], ["time", "a time…"],
];

/** The word that the broker takes for a place: earliest, 120, -10, 15m, @ms. */
function wordOf({ place, value }) {
  const text = String(value || "").trim();
  if (place === "earliest" || place === "latest") return place;
  if (!text) throw new Error("position: is missing");
  if (place === "back") return `-${text.replace(/^-/, "")}`;
  if (place === "time") {
    const ms = /^\d{11,}$/.test(text) ? Number(text) : new Date(text).getTime();
    if (Number.isNaN(ms)) throw new Error(`${text}: is no time; 2026-01-31 18:00 is one`);
    return `@${ms}`;
  }
  return text;
}

/** First what would change is shown, from the broker's own dry run; then it is done, or not. */
async function reset(at, present, changed) {
  const topics = [...new Set(present.partitions.map(({ topic }) => topic))].sort();
  let wanted = null;
  let found = null;
  const asked = await formDialog(`Reset offsets of ${present.group}`, [
    h("div", { class: "fields" },
      field({ label: "Topic", name: "topic", options: [["", "all of them"], ...topics.map((topic) => [topic, topic])] }),
      field({ label: "Partitions", name: "partitions", placeholder: "all", hint: "numbers, with commas; only with a topic" }),
      field({ label: "Continue from", name: "place", options: PLACES }),
      field({ label: "Position", name: "value", placeholder: "120, 15m, 2026-01-31 18:00", hint: "for the choices that end with dots" })),
  ], async (values) => {
    wanted = { to: wordOf(values) };
    if (values.topic) wanted.topic = values.topic;
    if (values.partitions.trim()) wanted.partitions = numbersOf(values.partitions);
    found = await post(`${at}/reset`, { ...wanted, dry_run: true });
  }, { action: "Preview", wide: true });
  if (!asked) return;
  const done = await formDialog(`Reset ${present.group} like this?`, [changesTable(found.changes)],
    () => post(`${at}/reset`, { ...wanted, dry_run: false }), { action: "Reset", kind: "danger", wide: true });
  if (!done) return;
  toast(`The offsets of ${present.group} are reset.`);
  await changed();
}

function numbersOf(text) {
  return text.split(",").map((one) => {
    if (!/^\s*\d+\s*$/.test(one)) throw new Error(`partitions: ${JSON.stringify(one.trim())} is no number`);
    return Number(one);
  });
}

function changesTable(changes) {
  return table("What would change", [
    { title: "Topic", name: true, cell: (one) => one.topic },
    { title: "Partition", number: true, cell: (one) => String(one.partition) },
    { title: "From", number: true, cell: (one) => (one.from === null || one.from < 0 ? "–" : count(one.from)) },
    { title: "To", number: true, cell: (one) => count(one.to) },
  ], changes, { none: "Nothing would change." });
}

async function remove(view, at, group) {
  const done = await confirmDialog(`Delete ${group}?`, "The group's committed offsets are deleted. A consumer that joins it later starts as in a new group.",
    () => del(at), "Delete", { type: group });
  if (!done) return;
  toast(`Group ${group} is deleted.`);
  view.go("#/groups");
}
