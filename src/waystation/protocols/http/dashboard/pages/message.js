// One message by its id, wherever it is: its sender's own, or its position. With `?topic=` in the address it is looked for
// there alone, and further back.

import { get, path } from "../lib/api.js";
import { storyCard } from "../lib/deaths.js";
import { fill, h } from "../lib/dom.js";
import { stateName } from "../lib/format.js";
import { badge, card, field, head, notice, valuesOf } from "../lib/widgets.js";
import { messageView } from "../lib/payload.js";

export async function open(view) {
  const id = view.params.join("/");
  const topic = view.query.get("topic") || "";
  if (!id) {
    fill(view.element, head("Find a message"), askAgain(view, "", topic));
    return;
  }
  view.title(`Message ${id}`);
  const address = topic ? path`/v1/topics/${topic}/messages/${id}` : path`/v1/messages/${id}`;
  let message = null;
  try {
    message = await get(address, {}, view.signal);
  } catch (error) {
    if (!error.status) throw error;
    fill(view.element, head(`Message ${id}`), notice(error.message, "warn"), askAgain(view, id, topic));
    return;
  }
  const [kind, name] = placeOf(message);
  fill(view.element,
    head(`Message ${id}`, [], message.state ? badge(stateName(message.state), "accent") : null),
    h("p", {}, `In the ${kind} `, h("a", { href: `#/${kind}s/${encodeURIComponent(name)}` }, name),
      kind === "topic" && message.offset !== undefined ? [", ", h("a", { href: around(message, name) }, "show the messages around it")] : null),
    messageView(message, storyCard(message)));
}

function placeOf(message) {
  const text = message.place || (message.queue ? `queue:${message.queue}` : `topic:${message.source}`);
  const at = text.indexOf(":");
  return [text.slice(0, at), text.slice(at + 1)];
}

function around(message, topic) {
  const words = new URLSearchParams({ tab: "messages", show: "offset", value: Math.max(0, message.offset - 10), partition: message.partition });
  return `#/topics/${encodeURIComponent(topic)}?${words}`;
}

function askAgain(view, id, topic) {
  const form = h("form", { "aria-label": "Find a message" },
    h("div", { class: "fields" },
      field({ label: "Id", name: "id", value: id, required: true, hint: "the sender's own, or QUEUE#TAG, or TOPIC-PARTITION@OFFSET" }),
      field({ label: "Topic", name: "topic", value: topic, hint: "to search this topic alone, and more of it; empty: all queues and topics" })),
    h("button", { type: "submit", class: "primary" }, "Find"));
  form.onsubmit = (event) => {
    event.preventDefault();
    const values = valuesOf(form);
    const words = values.topic.trim() ? `?${new URLSearchParams({ topic: values.topic.trim() })}` : "";
    const to = `#/messages/${encodeURIComponent(values.id.trim())}${words}`;
    // The same address is no change that the browser would tell: ask again by hand.
    if (location.hash === to) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else view.go(to);
  };
  return card("Find a message", form);
}
