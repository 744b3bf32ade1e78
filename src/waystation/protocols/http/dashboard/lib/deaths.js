// The failure history of a message, as the header `x-death` tells it: the latest first.

import { h } from "./dom.js";
import { time } from "./format.js";
import { card, table, whole } from "./widgets.js";

/** The failures of a message: told by the API, or in its header. */
export function deathsOf(message) {
  if (Array.isArray(message.deaths)) return message.deaths;
  let story = message.headers?.["x-death"];
  try {
    if (typeof story === "string") story = JSON.parse(story);
  } catch {
    story = null;
  }
  return Array.isArray(story) ? story.filter((death) => death && typeof death === "object") : [];
}

/** Where something died, as a link where there is a page for it. */
export function placeLink(place) {
  const text = String(place ?? "");
  if (!text) return "–";
  const [, kind = "queue", name] = /^(?:(topic|queue|group):)?([^]*)$/.exec(text);
  return h("a", { href: `#/${kind}s/${encodeURIComponent(name)}` }, text);
}

/** The failure history as a card, or nothing for a message that has none. */
export function storyCard(message) {
  const deaths = deathsOf(message);
  if (!deaths.length) return null;
  return card("Failure history", table("Failure history, the latest first", [
    { title: "when", cell: (death) => whole(time(death.time)) },
    { title: "where", name: true, cell: (death) => placeLink(death.queue) },
    { title: "why", cell: (death) => String(death.reason ?? "–") },
    { title: "times", number: true, cell: (death) => String(death.count ?? 1) },
    { title: "deliveries", number: true, cell: (death) => String(death.deliveries ?? "–") },
    { title: "error", wide: true, cell: (death) => h("code", {}, String(death.error ?? "–")) },
    { title: "published to", wide: true, cell: (death) => publishedTo(death) },
  ], deaths));
}

function publishedTo(death) {
  const keys = Array.isArray(death["routing-keys"]) ? death["routing-keys"].join(", ") : "";
  if (death.exchange === undefined && !keys) return "–";
  return `${death.exchange || "(default)"} ${keys}`;
}
