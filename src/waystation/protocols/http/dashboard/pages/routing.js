// Routing: exchanges and what they are bound to, as a picture and as tables; and where a message would be routed.

import { del, get, path, post, put } from "../lib/api.js";
import { fill, h, morph } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { follow } from "../lib/following.js";
import { messageFields, messageOf, parsed } from "../lib/message_dialog.js";
import { kindOf, labelOf, nameOf, routingPicture } from "../lib/routing_picture.js";
import { Pager, badge, button, card, confirmDialog, empty, field, formDialog, head, notice, searchBox, table, toast, valuesOf } from "../lib/widgets.js";

const EVERY_MS = 5000;
/** Bindings on a page: what a picture can show. */
const SHOWN = 60;
const KINDS = ["direct", "fanout", "topic", "headers", "filter", "x-consistent-hash", "x-delayed-message"];

export function open(view) {
  const page = { view, search: view.query.get("search") || "", exchanges: [], bindings: [], tried: null };
  const picture = h("div", {});
  const exchanges = h("div", {});
  const bindings = h("div", {});
  const pages = h("div", {});
  const names = h("datalist", { id: "exchange-names" });
  const pager = new Pager(() => page.now());
  const list = follow(view, EVERY_MS,
    () => get("/v1/routing", { search: page.search, after: pager.after, limit: SHOWN }, view.signal),
    (found) => {
      page.exchanges = found.exchanges;
      page.bindings = found.bindings;
      morph(exchanges, exchangeTable(page));
      morph(bindings, bindingTable(page));
      morph(names, found.exchanges.filter((one) => one.name).map((one) => h("option", { value: one.name })));
      morph(pages, pager.show(found.next, found.total, found.bindings.length));
      page.draw();
    });
  page.now = list.now;
  page.draw = () => morph(picture, pictureOf(page, searched));
  const searched = (text) => {
    page.search = text;
    pager.reset();
    view.setQuery({ search: text });
    page.now();
  };
  view.draw(
    head("Routing", [
      button("Bind", () => bind(page), { kind: "primary" }),
      button("New exchange", () => create(page)),
    ]),
    names,
    h("div", { class: "filters" }, searchBox("Search", page.search, searched)),
    list.problem,
    card("Exchanges and their targets", picture, pages),
    tester(page),
    card("Exchanges", exchanges),
    card("Bindings", bindings));
}

function pictureOf({ bindings, exchanges, tried }, choose) {
  if (!bindings.length) return empty("There are no bindings: messages reach queues and topics by their names only.");
  const kinds = new Map(exchanges.map((one) => [one.name, one.kind]));
  return routingPicture(bindings, kinds, { hit: tried && new Set(tried.targets), from: tried?.exchange, choose });
}

function targetLink(target) {
  const name = nameOf(target);
  const page = { queue: "queues/", topic: "topics/", exchange: "routing?search=" }[kindOf(target)];
  return page ? h("a", { href: `#/${page}${encodeURIComponent(name)}` }, target) : target;
}

// -- tables ------------------------------------------------------------------------------------------------------------

/** Those that are there from the start stay. */
const isOurs = (exchange) => exchange === "" || exchange.startsWith("amq.");

function exchangeTable(page) {
  return table("Exchanges", [
    { title: "Exchange", name: true, cell: (one) => one.name || "(default)" },
    { title: "Kind", cell: (one) => badge(one.kind) },
    { title: "Bindings", number: true, cell: (one) => count(one.bindings) },
    { title: "Alternate exchange", cell: (one) => one.alternate || "–" },
    { title: h("span", { class: "hidden" }, "Actions"), cell: (one) => (isOurs(one.name) ? "" : button("Delete", () => remove(page, one.name), { kind: "danger", label: `Delete exchange ${one.name}` })) },
  ], page.exchanges, { key: (one) => `=${one.name}`, none: page.search ? `Nothing has “${page.search}” in its name.` : "There are no exchanges." });
}

function bindingTable(page) {
  return table("Bindings", [
    { title: "From", name: true, cell: (one) => one.exchange || "(default)" },
    { title: "Key or condition", wide: true, cell: (one) => (labelOf(one) ? h("code", {}, labelOf(one)) : "–") },
    { title: "To", name: true, cell: (one) => targetLink(one.target) },
    { title: h("span", { class: "hidden" }, "Actions"), cell: (one) => button("Unbind", () => unbind(page, one), { label: `Unbind ${one.target} from ${one.exchange}` }) },
  ], page.bindings, { key: (one) => JSON.stringify([one.exchange, one.target, one.key, one.arguments]), none: "There are no bindings here." });
}

// -- testing the routing -----------------------------------------------------------------------------------------------

function tester(page) {
  const answer = h("div", { role: "status" });
  const form = h("form", { "aria-label": "Test the routing" },
    h("div", { class: "fields" },
      field({ label: "Exchange", name: "exchange", required: true, list: "exchange-names" }),
      field({ label: "Routing key", name: "key" })),
    h("details", {}, h("summary", {}, "Payload and headers"), messageFields({ timed: false })),
    h("p", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Test"), button("Clear", () => {
      page.tried = null;
      fill(answer);
      page.draw();
    }, { kind: "quiet" })),
    answer);
  form.onsubmit = async (event) => {
    event.preventDefault();
    const values = valuesOf(form);
    try {
      const { targets } = await post(path`/v1/exchanges/${values.exchange}/route`, { message: messageOf(values), routing_key: values.key });
      page.tried = { exchange: values.exchange, targets };
      fill(answer, targets.length ? notice(h("div", {}, "It would be routed to ", targets.map((target, i) => [i ? ", " : "", targetLink(target)]), "."), "good")
        : notice("It would be unroutable: no binding matches.", "warn"));
    } catch (error) {
      page.tried = null;
      fill(answer, notice(error.message, "bad"));
    }
    page.draw();
  };
  return card("Test the routing", h("p", { class: "muted" }, "Shows where a message would be routed. Nothing is sent."), form);
}

// -- what can be done --------------------------------------------------------------------------------------------------

const argumentsField = (hint) => field({ label: "Arguments (JSON)", name: "arguments", type: "textarea", rows: 3, hint });
const argumentsOf = (text) => (text.trim() ? parsed(text, "arguments") : {});

async function create(page) {
  let made = "";
  const done = await formDialog("New exchange", [
    field({ label: "Name", name: "name", required: true, maxlength: 255 }),
    field({ label: "Kind", name: "kind", value: "topic", options: KINDS.map((kind) => [kind, kind]) }),
    field({ label: "Alternate exchange", name: "alternate", placeholder: "none" }),
    argumentsField("x-delayed-type, hash-header, hash-property, where the kind takes them"),
  ], async (values) => {
    made = values.name;
    await put(path`/v1/exchanges/${made}`, { kind: values.kind, alternate: values.alternate || null, arguments: argumentsOf(values.arguments) });
  }, { action: "Create" });
  if (!done) return;
  toast(`Exchange ${made} is created.`);
  await page.now();
}

async function bind(page) {
  const done = await formDialog("Bind", [
    field({ label: "Exchange", name: "exchange", required: true, list: "exchange-names" }),
    h("div", { class: "fields" },
      field({ label: "To a", name: "kind", options: [["queue", "queue"], ["topic", "topic"], ["exchange", "exchange"]] }),
      field({ label: "Name", name: "name", required: true })),
    field({ label: "Key", name: "key", hint: "a routing key; a pattern like order.*.paid for topic exchanges; a weight for hashes" }),
    argumentsField('{"filter": "json.total >= 1000"}, or {"x-match": "all", "region": "eu"}'),
  ], (values) => post(path`/v1/exchanges/${values.exchange}/bindings`, {
    target: `${values.kind}:${values.name}`, key: values.key, arguments: argumentsOf(values.arguments),
  }), { action: "Bind" });
  if (!done) return;
  toast("It is bound.");
  await page.now();
}

async function unbind(page, one) {
  const label = labelOf(one);
  const done = await confirmDialog("Unbind?", `${one.target} gets nothing more from ${one.exchange}${label ? ` for ${label}` : ""}.`,
    () => del(path`/v1/exchanges/${one.exchange}/bindings`, { target: one.target, key: one.key, arguments: JSON.stringify(one.arguments || {}) }), "Unbind");
  if (!done) return;
  toast("It is unbound.");
  await page.now();
}

async function remove(page, name) {
  const done = await confirmDialog(`Delete exchange ${name}?`, "Its bindings are deleted with it. Publishing to it fails from then on.",
    () => del(path`/v1/exchanges/${name}`));
  if (!done) return;
  toast(`Exchange ${name} is deleted.`);
  await page.now();
}
