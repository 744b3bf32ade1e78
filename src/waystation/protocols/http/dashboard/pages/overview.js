// Whether the broker is healthy, at a glance: rates of the last hour, what there is, who is connected, what is busy.

import { get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { h, keep } from "../lib/dom.js";
import { byteRate, bytes, count, duration, percent, rate, several, short } from "../lib/format.js";
import { badge, bar, card, head, pairs, stat, table } from "../lib/widgets.js";

const HOUR_MS = 3600e3;
const MAX_POINTS = 1000;
const PROTOCOLS = [["kafka", "Kafka"], ["native", "Native"], ["amqp", "AMQP"], ["http", "HTTP"]];

export async function open(view) {
  const charts = makeCharts();
  const history = new History();
  let overview = await get("/v1/overview", {}, view.signal);

  async function readHistory() {
    history.replace(await get("/v1/history", {}, view.signal));
    showHistory();
  }

  function showHistory() {
    for (const { chart } of charts) chart.set(history.times, history.series);
  }

  function draw() {
    const { broker, health, totals, rates } = overview;
    view.draw(
      head("Overview", [], h("span", { class: "muted" }, `${broker.host ? `${broker.host}, ` : ""}version ${broker.version}, up ${duration(broker.uptime_ms)}`)),
      healthCard(health),
      h("div", { class: "stats" },
        stat("Published", rate(rates.publish), byteRate(rates.publish_bytes)),
        stat("Delivered", rate(rates.deliver), byteRate(rates.deliver_bytes)),
        stat("Acked", rate(rates.ack)),
        stat("Ready in queues", short(totals.messages_ready), `${short(totals.messages_held)} in flight, ${short(totals.messages_parked)} delayed`),
        stat("In topics", short(totals.topic_messages), `${several(totals.topics, "topic")}, ${several(totals.partitions, "partition")}`),
        stat("Queues", count(totals.queues), several(totals.exchanges, "exchange")),
        stat("Groups", count(totals.groups), several(totals.subscriptions, "subscription"))),
      h("div", { class: "grid" }, charts.map(({ title, chart }) => h("section", { class: "card", "aria-label": title, "data-key": title }, h("h2", {}, title), keep(chart.element)))),
      h("div", { class: "grid" }, doorsCard(overview.connections), resourcesCard(overview.resources)),
      h("div", { class: "grid" }, busyTopics(overview.busiest.topics), busyQueues(overview.busiest.queues)),
      brokerCard(broker));
  }

  view.live.on("overview", (fresh) => {
    overview = fresh;
    draw();
  });
  view.live.on("sample", (sample) => {
    history.add(sample);
    showHistory();
  });
  // Behind a pause (a hidden window, a broker that was away) the feed has a gap: the history is read again.
  view.live.on("state", (state) => state === "connected" && view.act(readHistory));
  draw();
  await readHistory();
}

function makeCharts() {
  const chart = (title, series, spell) => ({ title, chart: new Chart(title, series, spell) });
  return [
    chart("Messages per second", [{ name: "published", key: "publish" }, { name: "delivered", key: "deliver" }, { name: "acked", key: "ack" }], rate),
    chart("Bytes per second", [{ name: "in", key: "publish_bytes" }, { name: "out", key: "deliver_bytes" }], byteRate),
    chart("Ready in queues", [{ name: "messages", key: "messages_ready" }], short),
    chart("Latency of the broker", [{ name: "fsync", key: "fsync_ms" }, { name: "loop delay", key: "loop_delay_ms" }], duration),
  ];
}

/** The last hour, as the broker keeps it, with what has come since. Bounded, however long the page is open. */
export class History {
  times = [];
  series = {};

  replace(answer) {
    this.times = answer.times_ms.slice(-MAX_POINTS);
    this.series = {};
    for (const [name, values] of Object.entries(answer.series)) this.series[name] = values.slice(-MAX_POINTS);
  }

  add({ time_ms: time, values }) {
    if (this.times.length && time <= this.times[this.times.length - 1]) return;
    this.times.push(time);
    for (const [name, value] of Object.entries(values)) (this.series[name] ||= []).push(value);
    while (this.times.length > MAX_POINTS || (this.times.length && this.times[0] < time - HOUR_MS)) {
      this.times.shift();
      for (const values of Object.values(this.series)) values.shift();
    }
  }
}

function healthCard(health) {
  const [tone, text] = { ok: ["good", "The broker is healthy."], warning: ["warn", "The broker works, with warnings:"] }[health.status]
    || ["bad", "The broker is failing:"];
  return h("section", { class: `card health-card ${tone}`, "aria-label": "Health", "data-key": "health" },
    h("h2", {}, badge(health.status, tone), " ", text),
    health.reasons.length ? h("ul", {}, health.reasons.map((reason) =>
      h("li", { "data-key": reason.what }, h("b", {}, reason.what), reason.advice ? ` ${reason.advice}` : ""))) : null);
}

function doorsCard(connections) {
  const most = Math.max(1, ...Object.values(connections));
  return card("Connections by protocol", table("Connections by protocol", [
    { title: "Protocol", cell: ([protocol, title]) => h("a", { href: `#/connections?door=${protocol}` }, title) },
    { title: "Connections", number: true, cell: ([protocol]) => count(connections[protocol] ?? 0) },
    { title: "Share", cell: ([protocol, title]) => bar(connections[protocol] ?? 0, most, { label: `${connections[protocol] ?? 0} by ${title}` }) },
  ], PROTOCOLS, { key: ([protocol]) => protocol }));
}

function resourcesCard(resources) {
  const used = resources.disk_total_bytes - resources.disk_free_bytes;
  const limit = resources.memory_limit_bytes;
  const tone = (share) => (share > 0.95 ? "bad" : share > 0.85 ? "warn" : "");
  const disk = resources.disk_total_bytes ? used / resources.disk_total_bytes : 0;
  return card("Disk and memory", pairs([
    ["Disk", [bar(used, resources.disk_total_bytes, { tone: tone(disk), label: `${percent(disk)} of the disk is used` }),
      `${bytes(resources.disk_free_bytes)} free of ${bytes(resources.disk_total_bytes)}`]],
    ["Data of the broker", bytes(resources.data_bytes)],
    ["Memory", [limit ? bar(resources.memory_bytes, limit, { tone: tone(resources.memory_bytes / limit), label: `${percent(resources.memory_bytes / limit)} of the memory is used` }) : null,
      limit ? `${bytes(resources.memory_bytes)} of ${bytes(limit)}` : bytes(resources.memory_bytes)]],
    ["Processor", `${percent(resources.cpu_share)} of a core`],
    ["Event loop delay", duration(resources.loop_delay_ms)],
    ["Time of an fsync", duration(resources.fsync_ms)],
  ]));
}

function busyTopics(topics) {
  return card("Busiest topics", table("Busiest topics", [
    { title: "Topic", name: true, cell: (one) => h("a", { href: `#/topics/${encodeURIComponent(one.name)}` }, one.name) },
    { title: "Published", number: true, cell: (one) => rate(one.publish) },
    { title: "Bytes", number: true, cell: (one) => byteRate(one.publish_bytes) },
  ], topics, { key: (one) => one.name, none: "No topic is busy right now." }));
}

function busyQueues(queues) {
  return card("Busiest queues", table("Busiest queues", [
    { title: "Queue", name: true, cell: (one) => h("a", { href: `#/queues/${encodeURIComponent(one.name)}` }, one.name) },
    { title: "Put", number: true, cell: (one) => rate(one.put) },
    { title: "Delivered", number: true, cell: (one) => rate(one.deliver) },
    { title: "Acked", number: true, cell: (one) => rate(one.ack) },
    { title: "Ready", number: true, cell: (one) => short(one.ready) },
  ], queues, { key: (one) => one.name, none: "No queue is busy right now." }));
}

function brokerCard(broker) {
  return card("This broker", pairs([
    ["Version", broker.version], ["Cluster", broker.cluster_id], ["Node", String(broker.node_id)],
    ["Data", broker.persistent === false ? "in memory only: nothing survives a restart" : h("code", {}, broker.data)], ["Process", String(broker.pid)],
  ]));
}
