// The audit log: who logged in, who was refused, and who changed what.

import { get } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { follow } from "../lib/following.js";
import { count, time } from "../lib/format.js";
import { badge, card, field, head, loading, notice, searchBox, table, whole } from "../lib/widgets.js";

const SHOWN = 200;
const EVERY_MS = 3000;
const KINDS = [["", "all"], ["login", "Logins"], ["refusal", "Refusals"], ["change", "Changes"], ["left-out", "Left out"]];

const looks = (one) => (one.result === "ok" ? "good" : "warn");

function whatOf(one) {
  if (one.count) return `${count(one.count)} entries left out`;
  const what = [one.operation, one.resource, one.name].filter(Boolean).join(" ");
  return one.detail ? `${what} (${one.detail})` : what;
}

export function open(view) {
  let search = view.query.get("search") || "";
  let kind = view.query.get("kind") || "";
  let shown = null;
  const list = follow(view, EVERY_MS,
    () => get("/v1/audit", { search, kind, limit: SHOWN }, view.signal),
    (found) => {
      shown = found;
      draw();
    });
  const changed = () => {
    view.setQuery({ search, kind });
    list.now();
  };
  const searching = searchBox("Search entries", search, (text) => {
    search = text;
    changed();
  });
  const choice = field({ label: "Kind", name: "kind", value: kind, options: KINDS });
  choice.querySelector("select").onchange = (event) => {
    kind = event.target.value;
    changed();
  };
  const filters = h("div", { class: "filters" }, searching, choice);

  function draw() {
    view.draw(
      head("Audit"),
      h("p", { class: "muted" }, "Logins, refusals and changes; the newest first."),
      keep(list.problem),
      shown && !shown.on ? notice("Nothing is recorded while clients need not log in, unless the setting waystation.audit is on.") : null,
      card(null, keep(filters), shown === null ? loading() : table("Audit log", [
        { title: "Time", cell: (one) => whole(time(one.time_ms)) },
        { title: "Kind", cell: (one) => badge(one.kind, "accent") },
        { title: "User", name: true, cell: (one) => one.user },
        { title: "From", cell: (one) => h("span", { class: "nobreak" }, one.host) },
        { title: "By", cell: (one) => one.protocol },
        { title: "What", wide: true, cell: whatOf },
        { title: "Result", cell: (one) => badge(one.result, looks(one)) },
      ], shown.entries, {
        key: (one) => JSON.stringify(one), none: search || kind ? "No entry matches." : "There are no entries.",
      })));
  }

  draw();
}
