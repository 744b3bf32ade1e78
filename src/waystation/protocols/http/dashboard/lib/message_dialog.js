// One message in a dialog, with its failure history, a link to its own page and whatever may be done to it; and the
// form for a message that is to be sent.

import { storyCard } from "./deaths.js";
import { h } from "./dom.js";
import { messageLink, messageView } from "./payload.js";
import { button, field, showDialog } from "./widgets.js";

/** actions: [[text, kind, async () => whether it is done]]; the dialog closes with the action, or with a link that is followed. */
export function messageDialog(message, actions = []) {
  const name = message.id ?? `#${message.tag}`;
  const dialog = showDialog(`Message ${name}`,
    h("p", { class: "actions" },
      message.id === undefined ? null : h("a", { href: messageLink(message) }, "Its own page"),
      actions.map(([text, kind, act]) => button(text, async () => { if (await act()) dialog.close(); }, { kind }))),
    messageView(message, storyCard(message)));
  dialog.addEventListener("click", (event) => { if (event.target.closest("a")) dialog.close(); });
  return dialog;
}

/** The fields of a message to send; `messageOf` reads them. */
export function messageFields({ timed = true } = {}) {
  return [
    field({ label: "Payload", name: "payload", type: "textarea" }),
    h("div", { class: "fields" },
      field({ label: "The payload is", name: "form", options: [["text", "text"], ["json", "JSON"], ["base64", "base64 (any bytes)"]] }),
      timed ? field({ label: "Id", name: "id", placeholder: "the broker gives one" }) : null,
      timed ? field({ label: "Priority", name: "priority", type: "number", min: 0, max: 255, placeholder: "0" }) : null,
      timed ? field({ label: "Delay (seconds)", name: "delay", type: "number", min: 0, step: "any", placeholder: "none" }) : null,
      timed ? field({ label: "Time to live (seconds)", name: "ttl", type: "number", min: 0.001, step: "any", placeholder: "the queue's" }) : null),
    field({ label: "Headers", name: "headers", type: "textarea", rows: 3, placeholder: "region=eu", hint: "NAME=VALUE, one a line; or a JSON object" }),
  ];
}

/** The message of those fields, as the API takes it. Throws with a sentence where one of them cannot be read. */
export function messageOf(values) {
  const message = {};
  if (values.form === "json") {
    parsed(values.payload, "the payload"); // sent as it was typed: parsing rounds long numbers
    message.payload = values.payload;
    message.content_type = "application/json";
  } else if (values.form === "base64") message.payload_base64 = values.payload.replaceAll(/\s/g, "");
  else message.payload = values.payload;
  const headers = headersOf(values.headers || "");
  if (Object.keys(headers).length) message.headers = headers;
  if (values.id) message.id = values.id;
  if (values.priority) message.priority = Number(values.priority);
  if (values.delay) message.delay_ms = Math.round(Number(values.delay) * 1000);
  if (values.ttl) message.ttl_ms = Math.round(Number(values.ttl) * 1000);
  return message;
}

export function headersOf(text) {
  if (!text.trim()) return {};
  if (text.trim().startsWith("{")) return parsed(text, "the headers");
  const headers = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`headers: ${JSON.stringify(line)} is not NAME=VALUE`);
    headers[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return headers;
}

export function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: is no JSON: ${error.message}`);
  }
}
