// A topic's settings: all of them, with their values, where they come from, and a way to change it.

import { get, patch, path } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { button, card, notice } from "../lib/widgets.js";
import { changeSetting, settingsTable } from "./settings.js";

export function settingsPanel(view, topic, changed) {
  const list = h("div", {});
  const element = card("Settings", h("p", { class: "muted" }, "A topic's own setting overrides the broker's default."), list);
  const change = (name, value) => patch(path`/v1/topics/${topic}`, { settings: { [name]: value } });

  async function load() {
    let found = null;
    try {
      found = await get(path`/v1/topics/${topic}/settings`, {}, view.signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(list, notice(error.message, "bad"));
      return;
    }
    fill(list, settingsTable(`Settings of ${topic}`, found.settings, (setting) => [
      button("Change", () => view.act(() => edit(setting)), { kind: "link", label: `Change ${setting.name}` }),
    ]));
  }

  async function edit(setting) {
    const done = await changeSetting(setting, change, setting.source === "topic");
    if (!done) return;
    await load();
    await changed();
  }

  return { element, load };
}
