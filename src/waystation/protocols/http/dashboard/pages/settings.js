// The broker's settings: what holds, where it comes from, and a change of those that may change while it runs.

import { get, patch } from "../lib/api.js";
import { h, keep } from "../lib/dom.js";
import { badge, button, card, field, formDialog, head, searchBox, table, toast } from "../lib/widgets.js";

const TONES = { changed: "accent", topic: "accent", file: "good", flag: "good", environment: "good", broker: "good" };

export function open(view) {
  let search = view.query.get("search") || "";
  let all = [];
  const filters = h("div", { class: "filters" }, searchBox("Search settings", search, (text) => {
    search = text;
    view.setQuery({ search });
    draw();
  }));

  // There are some dozens: the search needs no further question to the broker.
  async function load() {
    all = (await get("/v1/settings", {}, view.signal)).settings;
    draw();
  }

  function draw() {
    const wanted = search.trim().toLowerCase();
    const shown = all.filter((one) => `${one.name} ${one.doc} ${one.source}`.toLowerCase().includes(wanted));
    view.draw(
      head("Settings"),
      card(null, keep(filters),
        settingsTable("Settings", shown, (setting) => (setting.dynamic
          ? button("Change", () => view.act(() => edit(setting)), { kind: "link", label: `Change ${setting.name}` })
          : h("span", { class: "muted" }, "at the next start"))),
        h("div", { class: "pager" }, `${shown.length} of ${all.length}`)));
  }

  async function edit(setting) {
    const change = (name, value) => patch("/v1/settings", { [name]: value });
    if (await changeSetting(setting, change, setting.source === "changed")) await load();
  }

  view.every(5000, load);
}

export function settingsTable(caption, settings, actions) {
  return table(caption, [
    { title: "Name", name: true, cell: (one) => h("code", {}, one.name) },
    { title: "Value", wide: true, cell: (one) => h("code", {}, one.value === "" ? "(empty)" : one.value) },
    { title: "From", cell: (one) => badge(one.source, TONES[one.source] || "") },
    { title: "What it does", wide: true, cell: (one) => [one.doc, one.value === one.default ? null : h("div", { class: "muted" }, `Default: ${one.default === "" ? "(empty)" : one.default}`)] },
    { title: "Change", cell: actions },
  ], settings, { key: (one) => one.name, none: "No setting has this in its name." });
}

/** A dialog that changes a setting; `change(name, value)` does it, with null for its default. Resolves to whether it was done. */
export async function changeSetting(setting, change, own) {
  const input = setting.kind === "bool"
    ? field({ label: setting.name, name: "value", value: setting.value, options: [["true", "true"], ["false", "false"]] })
    : setting.choices?.length && setting.kind === "string"
      ? field({ label: setting.name, name: "value", value: setting.value, options: setting.choices.map((one) => [one, one]) })
      : field({
        label: setting.name, name: "value", value: setting.value,
        inputmode: setting.kind === "int" || setting.kind === "float" ? "numeric" : null,
        hint: setting.choices?.length ? `of ${setting.choices.join(", ")}, separated by commas` : null,
      });
  const back = own ? field({ label: `Back to the default (${setting.default || "empty"})`, name: "reset", type: "checkbox" }) : null;
  const done = await formDialog(`Change ${setting.name}`, [input, back].filter(Boolean),
    (values) => change(setting.name, values.reset ? null : values.value), { text: setting.doc });
  if (done) toast(`${setting.name} is changed.`);
  return done;
}
