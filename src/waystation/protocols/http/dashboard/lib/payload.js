// A message as people look at it: what is known of it, its headers, and its payload as JSON, text or hex.

import { fill, h } from "./dom.js";
import { bytes, stateName, time } from "./format.js";
import { card, pairs, table, tabs } from "./widgets.js";

const HEX_LIMIT = 64 * 1024;

/** The bytes of a field that is text, or base64 where `encoding` says so. */
export function bytesOf(text, encoding) {
  if (text === null || text === undefined) return new Uint8Array();
  if (encoding === "base64") return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new TextEncoder().encode(text);
}

export function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_LIMIT); at += 16) {
    const row = data.subarray(at, at + 16);
    const digits = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = [...row].map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${letters}`);
  }
  if (data.length > HEX_LIMIT) lines.push(`… ${bytes(data.length - HEX_LIMIT)} more`);
  return lines.join("\n");
}

/** JSON in lines, with numbers as they were sent where the browser can tell (a long id loses its last digits otherwise). */
export function pretty(text) {
  const exact = (_, value, context) =>
    typeof value === "number" && context?.source !== undefined && context.source !== String(value) && JSON.rawJSON
      ? JSON.rawJSON(context.source) : value;
  return JSON.stringify(JSON.parse(text, exact), null, 2);
}

/** Where a message has a page of its own. One in a topic is known by its place, which no other message has. */
export function messageLink(message) {
  const inTopic = message.offset !== undefined && message.offset !== null && message.offset >= 0 && message.source && !message.queue;
  const id = inTopic ? `${message.source}-${message.partition}@${message.offset}` : message.id;
  return `#/messages/${encodeURIComponent(id)}`;
}

/** A few words of a payload, for a row of a table. */
export function glance(message, length = 80) {
  if (message.payload === null || message.payload === undefined) return "(no value)";
  if (message.encoding === "base64") return `(binary, ${bytes(bytesOf(message.payload, "base64").length)})`;
  if (!message.payload) return "(empty)";
  return message.payload.length > length ? `${message.payload.slice(0, length)}…` : message.payload;
}

export function payloadView(text, encoding) {
  const data = bytesOf(text, encoding);
  const forms = [["text", "Text", () => (encoding === "base64" ? new TextDecoder().decode(data) : text ?? "")], ["hex", "Hex", () => hex(data)]];
  let json = null;
  try {
    if (encoding !== "base64") json = pretty(text);
  } catch {
    // It is no JSON.
  }
  if (json !== null) forms.unshift(["json", "JSON", () => json]);
  let chosen = json !== null ? "json" : encoding === "base64" ? "hex" : "text";
  const box = h("div", {});
  const draw = () => {
    const form = forms.find(([name]) => name === chosen);
    fill(box,
      tabs(forms, chosen, (name) => {
        chosen = name;
        draw();
        box.querySelector('[aria-selected="true"]').focus();
      }, "Payload format"),
      h("pre", { class: "payload", tabindex: "0", role: "tabpanel", "aria-label": `payload as ${chosen}` }, form[2]()));
  };
  draw();
  return h("div", {}, text === null || text === undefined ? h("p", { class: "muted" }, "No value (a tombstone).") : box,
    h("p", { class: "muted" }, bytes(data.length)));
}

/** Fields that the API calls otherwise than people do. */
const LABELS = { taken_ms: "enqueued", place: "location" };
const SHOWN = ["payload", "payload_base64", "encoding", "headers", "headers_base64", "deaths"];

function spell(name, value) {
  if (name === "state") return stateName(value);
  return name.endsWith("_ms") && value > 1e11 ? `${time(value)} (${value})` : String(value);
}

/** Everything of a message that the API gives. */
export function messageView(message, ...more) {
  const facts = Object.entries(message)
    .filter(([name, value]) => !SHOWN.includes(name) && value !== null && value !== "" && typeof value !== "object")
    .map(([name, value]) => [LABELS[name] ?? name.replaceAll("_", " ").replace(/ ms$/, ""), spell(name, value)]);
  const headers = [
    ...Object.entries(message.headers || {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
    ...Object.entries(message.headers_base64 || {}).map(([name, value]) => [name, `${value} (base64)`]),
  ];
  return h("div", {},
    card("Payload", payloadView(message.payload, message.encoding)),
    card("Fields", pairs(facts)),
    headers.length ? card("Headers", table("Headers", [
      { title: "name", name: true, cell: ([name]) => h("code", {}, name) },
      { title: "value", wide: true, cell: ([, value]) => h("code", {}, value) },
    ], headers)) : null,
    more);
}
