// Pipelines: how those that run, or ran, on this broker are doing; and one, batch by batch.

import { get, path, post } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { fill, h, morph } from "../lib/dom.js";
import { ago, bytes, count, duration, rate, short, time } from "../lib/format.js";
import { follow } from "../lib/following.js";
import { pipelinePicture } from "../lib/pipeline_picture.js";
import { badge, button, card, confirmDialog, field, head, notice, pairs, searchBox, stat, table, toast, whole } from "../lib/widgets.js";

const LIST_MS = 3000;
const ONE_MS = 2000;
const SHOWN_BATCHES = 10;
const TONES = { running: "good", starting: "accent", stopping: "warn", stopped: "", finished: "good", failed: "bad", died: "bad", lost: "warn", restarting: "warn", waiting: "accent" };
const OVER = ["stopped", "finished", "failed", "died", "lost", "never ran"];

export function open(view) {
  return view.params.length ? openOne(view, view.params[0]) : openList(view);
}

const stateBadge = (seen) => badge(seen, TONES[seen] ?? "");
const firstLine = (text) => String(text).split("\n", 1)[0].slice(0, 160);
const behind = (lag, ms) => (ms ? `${count(lag)} (${duration(ms)})` : count(lag));
const errorOf = (one) => one.error || one.sinks?.find((sink) => sink.error)?.error || "";

// -- all pipelines -----------------------------------------------------------------------------------------------------

function openList(view) {
  let search = view.query.get("search") || "";
  const rows = h("div", {});
  const list = follow(view, LIST_MS, () => get("/v1/pipelines", { search }, view.signal), ({ pipelines, folder }) =>
    morph(rows, table("Pipelines", [
      { title: "Pipeline", name: true, cell: (one) => h("a", { href: `#/pipelines/${encodeURIComponent(one.pipeline)}` }, one.pipeline) },
      { title: "State", cell: (one) => stateBadge(one.seen) },
      { title: "Kind", cell: (one) => (one.by_hand ? "query" : "file") },
      { title: "Rate", number: true, cell: (one) => rate(one.rows_per_s) },
      { title: "Lag", number: true, cell: (one) => behind(one.lag, one.lag_ms) },
      { title: "Rows", number: true, cell: (one) => count(one.rows) },
      { title: "Sinks", number: true, cell: (one) => count(one.sinks.length) },
      { title: "Last report", cell: (one) => (one.updated_ms ? ago(one.updated_ms) : "–") },
      { title: "Last error", wide: true, cell: (one) => (errorOf(one) ? h("code", {}, firstLine(errorOf(one))) : "–") },
    ], pipelines, {
      key: (one) => one.pipeline,
      none: search ? `No pipeline has “${search}” in its name.` : "No pipeline has run on this broker yet: `waystation pipeline run FILE` runs one.",
    }), folder ? h("p", { class: "muted" }, "Those in the broker's folder of pipelines can be started here.") : null));
  const changed = (text) => {
    search = text;
    view.setQuery({ search });
    list.now();
  };
  view.draw(head("Pipelines"), h("div", { class: "filters" }, searchBox("Search", search, changed)), list.problem, card(null, rows));
}

// -- one pipeline ------------------------------------------------------------------------------------------------------

function openOne(view, name) {
  view.title(name);
  const at = path`/v1/pipelines/${name}`;
  const beside = h("span", {});
  const actions = h("span", { class: "actions" });
  const figures = h("div", {});
  const picture = h("div", {});
  const facts = h("div", {});
  const sinks = h("div", {});
  const batches = new Batches();
  const read = follow(view, ONE_MS, () => get(at, {}, view.signal), (info) => {
    morph(beside, stateBadge(info.seen));
    morph(actions, actionsOf(at, info, read.now));
    morph(figures, errorOf(info) ? notice(h("pre", {}, errorOf(info)), "bad") : null, comesNext(info), stats(info));
    const drawn = pipelinePicture(info);
    morph(picture, drawn ? card("Picture", drawn) : null);
    morph(sinks, sinkTable(info.sinks));
    morph(facts, factsOf(info));
    batches.take(info.timeline);
  });
  view.draw(head(name, actions, beside), read.problem, figures, picture, card("Sinks", sinks), batches.element, card("Facts", facts));
}

function actionsOf(at, info, changed) {
  const over = OVER.includes(info.seen);
  return [
    isPage(info.ui_url) && !over ? h("a", { class: "button", href: info.ui_url, target: "_blank", rel: "noopener noreferrer" }, "Spark UI") : null,
    info.runnable ? button("Start", () => act(`${at}/start`, `${info.pipeline} is starting.`, changed), { kind: "primary", disabled: !over }) : null,
    button("Stop", () => stop(at, info.pipeline, changed), { kind: "danger", disabled: over && info.seen !== "lost" }),
  ];
}

/** An address from a report: nothing but a web page. */
const isPage = (url) => /^https?:\/\//.test(url);

/** When it starts again, and why. */
function comesNext(info) {
  if (!info.next_start_ms || !["restarting", "waiting"].includes(info.seen)) return null;
  const what = info.seen === "restarting" ? `Restart ${count(info.restarts)} after a failure` : `Next run (${info.schedule})`;
  return notice(`${what}: ${time(info.next_start_ms)}.`, info.seen === "restarting" ? "warn" : "");
}

async function act(address, said, changed) {
  try {
    await post(address);
    toast(said);
  } catch (error) {
    toast(error.message);
  }
  await changed();
}

async function stop(at, name, changed) {
  const done = await confirmDialog(`Stop ${name}?`, "It finishes its batch first. When it runs again, it continues from its checkpoint.", () => post(`${at}/stop`), "Stop");
  if (!done) return;
  toast(`${name} is told to stop.`);
  await changed();
}

function stats(info) {
  return h("div", { class: "stats" },
    stat("Rows", count(info.rows), "written in this run"),
    stat("Rate", rate(info.rows_per_s), "rows"),
    stat("Lag", count(info.lag), info.lag_ms ? `records behind, the oldest ${duration(info.lag_ms)} old` : "records behind, the slowest sink"),
    info.lost ? stat("Lost", count(info.lost), "rows deleted before they were read") : null,
    info.retries ? stat("Retries", count(info.retries), "requests sent again") : null,
    info.restarts ? stat("Restarts", count(info.restarts), "after failures") : null,
    info.schedule ? stat("Runs", count(info.runs), info.skipped_runs ? `${count(info.skipped_runs)} skipped` : "of its schedule") : null,
    stat("Last report", info.updated_ms ? ago(info.updated_ms) : "–"),
    stat("Running since", info.started_ms ? time(info.started_ms) : "–"));
}

function sinkTable(sinks) {
  return table("Sinks", [
    { title: "Sink", name: true, cell: (one) => one.sink },
    { title: "Kind", cell: (one) => one.kind || "–" },
    { title: "State", cell: (one) => stateBadge(one.phase) },
    { title: "Batch", number: true, cell: (one) => (one.batch < 0 ? "–" : count(one.batch)) },
    { title: "Rows written", number: true, cell: (one) => count(one.rows) },
    { title: "Rows read", number: true, cell: (one) => count(one.rows_read) },
    { title: "Malformed", number: true, cell: (one) => count(one.malformed) },
    { title: "Rate", number: true, cell: (one) => rate(one.rows_per_s) },
    { title: "Arriving", number: true, cell: (one) => rate(one.arriving_per_s) },
    { title: "Lag", number: true, cell: (one) => behind(one.lag, Math.max(0, ...(one.sources || []).map((source) => source.lag_ms || 0))) },
    { title: "Batch time", number: true, cell: (one) => duration(one.batch_ms) },
    { title: "State", cell: (one) => (one.state_rows ? `${count(one.state_rows)} rows, ${bytes(one.state_bytes)}` : "–") },
    { title: "Late rows, at least", number: true, cell: (one) => count(one.late_rows) },
    { title: "Watermark", cell: (one) => one.watermark || "–" },
    { title: "Error", wide: true, cell: (one) => (one.error ? h("code", {}, firstLine(one.error)) : "–") },
  ], sinks, { key: (one) => one.sink, none: "It has not reported any sinks." });
}

function factsOf(info) {
  const said = (name, value) => (value ? [name, h("span", { class: "mono" }, String(value))] : null);
  return pairs([
    said("file", info.file), said("host", info.host), said("process", info.pid), said("run", info.run), said("master", info.master),
    said("trigger", info.trigger), said("schedule", info.schedule), said("last error", info.last_error), said("checkpoint", info.checkpoint), said("log", info.log), ["ends by itself", info.bounded ? "yes" : "no"],
    info.by_hand ? ["kind", "a query that was started by hand"] : null,
    ["the broker can start it", info.runnable ? "yes" : "no"],
  ]);
}

// -- batch by batch ----------------------------------------------------------------------------------------------------

/** The timeline of one sink: rows and time of each batch, as charts and as a table. */
class Batches {
  constructor() {
    this.points = [];
    this.sink = "";
    this.names = "";
    this.rows = new Chart("Rows per batch", [{ name: "rows", key: "rows" }], short);
    this.times = new Chart("Time per batch", [{ name: "batch", key: "batch_ms" }], duration);
    this.choice = h("div", { class: "filters" });
    this.list = h("div", {});
    this.element = card("Batches", this.choice,
      h("div", { class: "grid" }, h("div", {}, h("h3", {}, "Rows per batch"), this.rows.element), h("div", {}, h("h3", {}, "Time per batch"), this.times.element)),
      this.list);
  }

  take(points) {
    this.points = points;
    this.#choose();
    const own = points.filter((point) => point.sink === this.sink);
    const times = own.map((point) => point.time_ms);
    this.rows.set(times, { rows: own.map((point) => point.rows) });
    this.times.set(times, { batch_ms: own.map((point) => point.batch_ms) });
    morph(this.list, table("Batches, the latest first", [
      { title: "When", cell: (one) => whole(time(one.time_ms)) },
      { title: "Batch", number: true, cell: (one) => count(one.batch) },
      { title: "Rows", number: true, cell: (one) => count(one.rows) },
      { title: "Time", number: true, cell: (one) => duration(one.batch_ms) },
      { title: "Rate", number: true, cell: (one) => rate(one.rows_per_s) },
      { title: "Lag", number: true, cell: (one) => count(one.lag) },
    ], own.slice(-SHOWN_BATCHES).reverse(), { key: (one) => `${one.batch} ${one.time_ms}`, none: "No batch has been seen." }));
  }

  /** The choice of a sink is drawn again only when there are others. */
  #choose() {
    const sinks = [...new Set(this.points.map((point) => point.sink))].sort();
    if (sinks.join("\n") === this.names) return;
    this.names = sinks.join("\n");
    if (!sinks.includes(this.sink)) this.sink = sinks[0] ?? "";
    const box = field({ label: "Sink", name: "sink", value: this.sink, options: sinks.map((sink) => [sink, sink]) });
    box.querySelector("select").onchange = (event) => {
      this.sink = event.target.value;
      this.take(this.points);
    };
    fill(this.choice, sinks.length > 1 ? box : null);
  }
}
