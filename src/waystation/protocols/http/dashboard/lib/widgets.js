// The parts that pages are made of. Each returns an element; what they are asked to do comes in as functions.

import { fill, h } from "./dom.js";

/** A page's heading with its actions: head("Topics", [button, …], badge…) */
export function head(title, actions = [], ...beside) {
  return h("div", { class: "head" }, h("h1", {}, title), beside, h("div", { class: "actions" }, actions));
}

export function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title || null }, title ? h("h2", {}, title) : null, children);
}

export function stat(label, value, note = "") {
  return h("div", { class: "stat" },
    h("div", { class: "label" }, label), h("div", { class: "value" }, value), note ? h("div", { class: "note" }, note) : null);
}

export const badge = (text, tone = "") => h("span", { class: `badge ${tone}` }, text);
export const notice = (text, tone = "") => h("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : null }, text);
export const loading = () => h("p", { class: "muted" }, "Loading…");
/** A time or a number that is not to be broken into lines. */
export const whole = (text) => h("span", { class: "nobreak" }, text);
export const empty = (text) => h("p", { class: "empty" }, text);

export function button(text, action, { kind = "", disabled = false, label = null } = {}) {
  return h("button", { type: "button", class: kind, disabled, "aria-label": label, onclick: action }, text);
}

/** columns: [{title, cell(row) -> text or element, number?, name?, wide?}]; key(row) keeps rows apart while they change. */
export function table(caption, columns, rows, { key, none = "Nothing here." } = {}) {
  if (!rows.length) return empty(none);
  const kind = (column) => (column.number ? "number" : column.name ? "name" : column.wide ? "wide" : null);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kind(column) }, column.title)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", { "data-key": key ? key(row) : null }, columns.map((column) => h("td", { class: kind(column) }, column.cell(row))))))));
}

/** Forward and back through pages that are known by the name behind which they begin. */
export class Pager {
  constructor(change) {
    this.change = change;
    this.before = [];
    this.after = "";
    this.next = null;
  }

  reset() {
    this.before = [];
    this.after = "";
  }

  /** The element for a page that was answered with `next`, `total` and this many rows. */
  show(next, total, rows) {
    this.next = next;
    if (!this.before.length && !next) return total === undefined || total === null ? null : h("div", { class: "pager" }, `${total} in all`);
    return h("div", { class: "pager" },
      total === undefined || total === null ? null : h("span", {}, `${rows} of ${total}`),
      button("Previous", () => this.#back(), { disabled: !this.before.length }),
      button("Next", () => this.#on(), { disabled: !next }));
  }

  #back() {
    this.after = this.before.pop() ?? "";
    this.change();
  }

  #on() {
    this.before.push(this.after);
    this.after = this.next;
    this.change();
  }
}

let fields = 0;

/** A labelled input: {label, name, type?, value?, hint?, options?: [[value, text]], required?, placeholder?, rows?, min?, max?, step?} */
export function field({ label, name, type = "text", value = "", hint, options, ...rest }) {
  const id = `field-${++fields}`;
  const described = hint ? `${id}-hint` : null;
  const common = { id, name, "aria-describedby": described, autocomplete: "off", spellcheck: "false", ...rest };
  let input;
  if (options) input = h("select", { ...common, value: options.some(([one]) => one === value) ? value : options[0]?.[0] ?? "" }, options.map(([one, text]) => h("option", { value: one }, text)));
  else if (type === "textarea") input = h("textarea", { ...common, value });
  else if (type === "checkbox") input = h("input", { ...common, type, checked: Boolean(value) });
  else input = h("input", { ...common, type, value });
  const box = type === "checkbox" ? "field inline" : "field";
  const parts = type === "checkbox" ? [input, h("label", { for: id }, label)] : [h("label", { for: id }, label), input];
  return h("div", { class: box }, parts, hint ? h("span", { class: "hint", id: described }, hint) : null);
}

/** The values of a form's fields by name; a checkbox is true or false. */
export function valuesOf(form) {
  const values = {};
  for (const input of form.elements) if (input.name) values[input.name] = input.type === "checkbox" ? input.checked : input.value;
  return values;
}

/**
 * A form in a dialog. `submit(values)` may throw: its sentence is shown and the dialog stays open. Another page closes it,
 * unless it is to `stay`. Resolves to whether it was done.
 */
export function formDialog(title, inputs, submit, { action = "Save", kind = "primary", wide = false, text = "", stay = false } = {}) {
  return new Promise((resolve) => {
    const problem = h("div", {});
    const go = h("button", { type: "submit", class: kind }, action);
    const form = h("form", { method: "dialog" },
      h("h2", {}, title), text ? h("p", {}, text) : null, inputs, problem,
      h("div", { class: "actions" }, button("Cancel", () => dialog.close()), go));
    const dialog = h("dialog", { class: wide ? "wide" : null, "aria-label": title, "data-stay": stay }, form);
    let done = false;
    form.onsubmit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      try {
        await submit(valuesOf(form), problem);
        done = true;
        dialog.close();
      } catch (error) {
        fill(problem, notice(error.message, "bad"));
      } finally {
        go.disabled = false;
      }
    };
    dialog.onclose = () => {
      dialog.remove();
      resolve(done);
    };
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks before something that cannot be undone, and does it. With `type`, only for somebody who has typed that. */
export function confirmDialog(title, text, action, word = "Delete", { type = "" } = {}) {
  if (!type) return formDialog(title, [], action, { action: word, kind: "danger", text });
  const input = field({ label: `Type ${type} to confirm`, name: "typed", required: true });
  const checked = (values) => {
    if (values.typed.trim() !== type) throw new Error(`this is not ${type}: nothing changed`);
    return action(values);
  };
  return formDialog(title, [input], checked, { action: word, kind: "danger", text });
}

/** Shows something in a dialog until it is closed. */
export function showDialog(title, ...children) {
  const dialog = h("dialog", { class: "wide", "aria-label": title },
    h("h2", {}, title), children, h("div", { class: "actions" }, button("Close", () => dialog.close(), { kind: "primary" })));
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** tabs: [[name, title]]; the chosen one is told to `choose`. Arrow keys move between them. */
export function tabs(list, selected, choose, label = "Views") {
  const move = (event, i) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const row = event.currentTarget.parentNode;
    const to = (i + step + list.length) % list.length;
    choose(list[to][0]);
    if (row.isConnected) row.children[to]?.focus();
  };
  return h("div", { class: "tabs", role: "tablist", "aria-label": label }, list.map(([name, title], i) =>
    h("button", {
      type: "button", role: "tab", "aria-selected": String(name === selected),
      tabindex: name === selected ? "0" : "-1", onclick: () => choose(name), onkeydown: (event) => move(event, i),
    }, title)));
}

/** value of high, as a bar with its text beside it for those who cannot see it. */
export function bar(value, high, { tone = "", label = "" } = {}) {
  const share = high > 0 ? Math.min(1, value / high) : 0;
  return h("div", { class: `bar ${tone}`, role: "img", "aria-label": label || `${value} of ${high}` },
    h("span", { style: { width: `${(share * 100).toFixed(1)}%` } }));
}

export function pairs(list) {
  return h("dl", { class: "pairs" }, list.filter((pair) => pair).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]));
}

export function toast(text) {
  const box = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), 6000);
}

/** A search box that tells `change(text)` when typing pauses. */
export function searchBox(label, value, change) {
  let timer = 0;
  const wrap = field({ label, name: "search", type: "search", value, placeholder: "part of the name", "data-own": "" });
  wrap.querySelector("input").oninput = (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => change(event.target.value), 200);
  };
  return wrap;
}
