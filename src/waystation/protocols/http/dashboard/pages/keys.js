// API keys: which there are, whose, until when; to add one, which is shown once, and to revoke one.

import { del, get, path, post } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { follow } from "../lib/following.js";
import { time } from "../lib/format.js";
import { badge, button, card, confirmDialog, field, formDialog, head, loading, Pager, searchBox, showDialog, table, toast, whole } from "../lib/widgets.js";

const PAGE = 50;
const DAY_MS = 24 * 3600 * 1000;
const ROLES = [["full", "full: all that the user may do"], ["read-only", "read-only: to look, and to read topics"]];

export function open(view) {
  let search = view.query.get("search") || "";
  let shown = null;
  const pager = new Pager(() => list.now());
  const list = follow(view, 5000,
    () => get("/v1/keys", { search, after: pager.after, limit: PAGE }, view.signal),
    (found) => {
      shown = found;
      draw();
    });
  const searching = searchBox("Search keys", search, (text) => {
    search = text;
    pager.reset();
    view.setQuery({ search });
    list.now();
  });
  const filters = h("div", { class: "filters" }, searching);

  function draw() {
    view.draw(
      head("API keys", [button("New key…", () => view.act(() => create(list.now)), { kind: "primary" })]),
      h("p", { class: "muted" }, "A key lets a program be a user without the user's password."),
      keep(list.problem),
      card(null, keep(filters), shown === null ? loading() : [
        table("API keys", columns((one) => view.act(() => revoke(one, list.now))), shown.keys, {
          key: (one) => one.key, none: search ? "No key matches." : "There are no keys.",
        }),
        pager.show(shown.next, shown.total, shown.keys.length)]));
  }

  draw();
}

function columns(end) {
  return [
    { title: "Key", name: true, cell: (one) => h("code", {}, `${one.key}…`) },
    { title: "User", cell: (one) => one.user },
    { title: "Role", cell: (one) => badge(one.role, one.role === "full" ? "warn" : "accent") },
    { title: "Expires", cell: (one) => [whole(time(one.expires_ms)), one.expired ? badge("expired", "bad") : null] },
    { title: "Note", wide: true, cell: (one) => one.note },
    { title: "Revoke", cell: (one) => button("Revoke…", () => end(one), { kind: "link", label: `Revoke ${one.key}` }) },
  ];
}

async function create(changed) {
  let made = null;
  await formDialog("New API key", [
    h("div", { class: "fields" },
      field({ label: "User", name: "user", required: true, maxlength: 128 }),
      field({ label: "Role", name: "role", options: ROLES }),
      field({ label: "Days", name: "days", type: "number", min: 1, max: 3650, step: 1, value: 90, hint: "for which it is valid" }),
      field({ label: "Note", name: "note", maxlength: 200, hint: "what it is for" })),
  ], async ({ user, role, days, note }) => {
    made = await post("/v1/keys", { user, role, note, expires_in_ms: Math.round(Number(days) * DAY_MS) });
  }, { action: "Create", wide: true });
  if (made === null) return;
  await changed();
  await showDialog("The new key", h("p", {}, "Copy it now: it is not shown again."), h("p", {}, h("code", { class: "secret" }, made.secret)));
}

async function revoke(one, changed) {
  const text = `What has logged in by ${one.key} of ${one.user} is closed at once.`;
  const done = await confirmDialog(`Revoke ${one.key}?`, text, () => del(path`/v1/keys/${one.key}`), "Revoke");
  if (!done) return;
  toast(`${one.key} is revoked.`);
  await changed();
}
