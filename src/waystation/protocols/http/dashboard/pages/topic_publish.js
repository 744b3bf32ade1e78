// The form that publishes a message to a topic. What was typed stays, so that the next message is near.

import { path, post } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { messageFields, messageOf } from "../lib/message_dialog.js";
import { card, field, notice, valuesOf } from "../lib/widgets.js";

const MAX_CHOICES = 1000;

/** `partitions()` tells how many there are now. */
export function publishForm(topic, partitions) {
  const outcome = h("div", { role: "status" });
  const go = h("button", { type: "submit", class: "primary" }, "Publish");
  const place = field({ label: "Partition", name: "partition", options: [["", "by the key"]] });
  const form = h("form", { "aria-label": "Publish a message", onsubmit: submit },
    h("div", { class: "fields" }, field({ label: "Key", name: "key", hint: "messages with the same key stay in order" }), place),
    messageFields(), outcome, h("div", { class: "actions" }, go));
  const select = place.querySelector("select");
  select.onfocus = () => growTo(select, partitions());
  growTo(select, partitions());

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      const values = valuesOf(form);
      const message = messageOf(values);
      if (values.key) message.key = values.key;
      const published = await post(path`/v1/topics/${topic}/messages`, message, { partition: values.partition });
      fill(outcome, notice(told(topic, published, message.delay_ms), "good"));
    } catch (error) {
      fill(outcome, notice(error.message, "bad"));
    } finally {
      go.disabled = false;
    }
  }
  return card("Publish a message", form);
}

function growTo(select, total) {
  for (let i = select.options.length - 1; i < Math.min(total, MAX_CHOICES); i += 1) select.append(h("option", { value: String(i) }, String(i)));
}

function told(topic, published, delay) {
  const [place] = published.places;
  if (!place) return delay ? `It is scheduled, and will be published at ${time(Date.now() + delay)}.` : "It is published.";
  const id = `${topic}-${place.partition}@${place.offset}`;
  return ["It is stored in partition ", String(place.partition), " at offset ",
    h("a", { href: `#/messages/${encodeURIComponent(id)}` }, String(place.offset)), "."];
}
