// Who is connected, by which protocol, and what they do; with a name in the address, one connection in detail.

import { del, get, path } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { follow } from "../lib/following.js";
import { ago, bytes, count, time } from "../lib/format.js";
import { badge, button, card, confirmDialog, field, head, loading, pairs, Pager, searchBox, stat, table, toast } from "../lib/widgets.js";

const PAGE = 50;
const PROTOCOLS = [["kafka", "Kafka"], ["native", "Native"], ["amqp", "AMQP"], ["http", "HTTP"]];
const titleOf = (protocol) => (PROTOCOLS.find(([known]) => known === protocol) || ["", protocol])[1];
const link = (name) => `#/connections/${encodeURIComponent(name)}`;

export function open(view) {
  return view.params.length ? openOne(view, view.params[0]) : openList(view);
}

function openList(view) {
  let search = view.query.get("search") || "";
  let protocol = view.query.get("door") || "";
  let shown = null;
  const pager = new Pager(() => list.now());
  const list = follow(view, 3000,
    () => get("/v1/connections", { search, door: protocol, after: pager.after, limit: PAGE }, view.signal),
    (found) => {
      shown = found;
      draw();
    });
  const changed = () => {
    pager.reset();
    view.setQuery({ search, door: protocol });
    list.now();
  };
  const searching = searchBox("Search connections", search, (text) => {
    search = text;
    changed();
  });
  const choice = field({ label: "Protocol", name: "door", value: protocol, options: [["", "all"], ...PROTOCOLS] });
  choice.querySelector("select").onchange = (event) => {
    protocol = event.target.value;
    changed();
  };
  const filters = h("div", { class: "filters" }, searching, choice);

  function draw() {
    view.draw(
      head("Connections"),
      h("div", { class: "stats" }, PROTOCOLS.map(([name, title]) => stat(title, count(shown?.by_door[name] ?? 0)))),
      keep(list.problem),
      card(null, keep(filters), shown === null ? loading() : [
        table("Connections", columns((one) => view.act(() => close(view, one.name, list.now))), shown.connections, {
          key: (one) => one.name, none: search || protocol ? "No connection matches." : "There are no connections.",
        }),
        pager.show(shown.next, shown.total, shown.connections.length)]));
  }

  draw();
}

function columns(end) {
  return [
    { title: "Who", name: true, cell: (one) => h("a", { href: link(one.name) }, clientOf(one) || one.name) },
    { title: "Protocol", cell: (one) => badge(titleOf(one.door), "accent") },
    { title: "From", cell: (one) => h("span", { class: "nobreak" }, peerOf(one)) },
    { title: "What it does", wide: true, cell: (one) => one.doing || one.state },
    { title: "Since", cell: (one) => h("span", { class: "nobreak" }, ago(one.since_ms)) },
    { title: "Received", number: true, cell: (one) => moved(one.received_bytes) },
    { title: "Sent", number: true, cell: (one) => moved(one.sent_bytes) },
    { title: "Close", cell: (one) => button("Close…", () => end(one), { kind: "link", label: `Close ${one.name}` }) },
  ];
}

async function openOne(view, name) {
  view.title(name);
  const address = path`/v1/connections/${name}`;

  async function load() {
    const one = await get(address, {}, view.signal);
    const consumers = (one.channels || []).flatMap((channel) => channel.consumers || []);
    view.draw(
      head(clientOf(one) || name, [button("Close connection", () => view.act(() => close(view, name, () => view.go("#/connections"))), { kind: "danger" })],
        badge(titleOf(one.door), "accent"), badge(one.state, one.state === "running" ? "good" : "warn")),
      h("div", { class: "grid" },
        card("Connection", pairs([
          ["Name", one.name], ["What it does", one.doing], ["From", peerOf(one)], ["To", one.host?.[0] ? `${one.host[0]}:${one.host[1]}` : null],
          ["Since", `${time(one.since_ms)} (${ago(one.since_ms)})`], one.user ? ["User", one.user] : null,
          one.namespace ? ["Virtual host", one.namespace] : null, ["Received", moved(one.received_bytes)], ["Sent", moved(one.sent_bytes)],
          one.heartbeat_s ? ["Heartbeat", `${one.heartbeat_s} s`] : null,
        ])),
        card("What the client says of itself", Object.keys(one.client || {}).length
          ? pairs(Object.entries(one.client).map(([key, value]) => [key.replaceAll("_", " "), spell(value)]))
          : h("p", { class: "muted" }, "Nothing."))),
      one.channels?.length ? card("Channels", channelTable(one.channels)) : null,
      consumers.length ? card("Consumers", consumerTable(consumers)) : null);
  }

  view.every(2000, load);
}

function channelTable(channels) {
  return table("Channels", [
    { title: "Channel", cell: (one) => String(one.number) },
    { title: "Prefetch", number: true, cell: (one) => count(one.prefetch) },
    { title: "Not acked", number: true, cell: (one) => count(one.unacked) },
    { title: "Not confirmed", number: true, cell: (one) => count(one.unconfirmed) },
    { title: "Published", number: true, cell: (one) => count(one.published) },
    { title: "Delivered", number: true, cell: (one) => count(one.delivered) },
    { title: "Acked", number: true, cell: (one) => count(one.acked) },
    { title: "Mode", cell: (one) => [one.confirms ? badge("confirms") : null, one.transactional ? badge("transactions") : null] },
  ], channels, { key: (one) => one.number });
}

function consumerTable(consumers) {
  return table("Consumers", [
    { title: "Tag", name: true, cell: (one) => one.tag },
    { title: "Queue", name: true, cell: (one) => h("a", { href: `#/queues/${encodeURIComponent(one.queue)}` }, one.queue) },
    { title: "Channel", number: true, cell: (one) => String(one.channel) },
    { title: "Prefetch", number: true, cell: (one) => count(one.prefetch) },
    { title: "Acks", cell: (one) => (one.acks ? "yes" : "no") },
    { title: "Exclusive", cell: (one) => (one.exclusive ? "yes" : "no") },
  ], consumers, { key: (one) => `${one.channel}/${one.tag}` });
}

async function close(view, name, after) {
  const reason = "closed from the dashboard";
  const done = await confirmDialog(`Close ${name}?`, "Its messages in flight are redelivered to others. Most clients reconnect by themselves.",
    () => del(path`/v1/connections/${name}`, { reason }), "Close connection");
  if (!done) return;
  toast(`${name} is closed.`);
  await after();
}

/** Not every protocol counts bytes. */
const moved = (size) => (size ? bytes(size) : "–");
const peerOf = (one) => (one.peer?.[0] ? `${one.peer[0]}:${one.peer[1]}` : "–");

/** What a client calls itself, whichever protocol it speaks. */
function clientOf(one) {
  const said = one.client || {};
  return said.connection_name || said.client_id || said.name || said.product || said.user_agent || "";
}

const spell = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
