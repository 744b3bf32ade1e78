// A queue's settings as a form and as a list: one table says how each is asked for and spelled.

import { h } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { field, pairs } from "./widgets.js";

const OVERFLOW = [["reject", "reject new messages"], ["drop-oldest", "drop the oldest"],
  ["dead-letter", "dead-letter the oldest"], ["reject-dead-letter", "reject new messages and dead-letter them"]];

/** [name, label, kind, hint]; kinds: ms, number, text, flag, overflow. `null` instead of a number: no limit. */
const FIELDS = [
  ["max_deliveries", "Maximum deliveries", "number", "0: retried forever"],
  ["dead_letter", "Dead-letter queue", "text", "a queue, or topic:NAME"],
  ["dead_letter_exchange", "… or dead-letter exchange", "text", "instead of a queue"],
  ["dead_letter_key", "… with the routing key", "text", "empty: their own"],
  ["retry_base_ms", "Delay of the first retry (ms)", "ms", ""],
  ["retry_factor", "Backoff factor", "number", ""],
  ["retry_max_ms", "Maximum delay of a retry (ms)", "ms", ""],
  ["retry_jitter", "Jitter", "number", "0.2: between 80 % and 120 %"],
  ["hold_ms", "Visibility timeout (ms)", "ms", "redelivered if not settled by then"],
  ["ttl_ms", "Time to live (ms)", "ms", "empty: no limit"],
  ["max_length", "Maximum number of messages", "number", "empty: no limit"],
  ["max_bytes", "Maximum bytes", "bytes", "empty: no limit"],
  ["overflow", "When it is full", "overflow", ""],
  ["dedup_window_ms", "Deduplication window (ms)", "ms", "0: ids may be used again"],
  ["expires_ms", "Deleted when unused for (ms)", "ms", "empty: never"],
  ["max_priority", "Highest priority", "number", ""],
  ["single_active", "One consumer at a time", "flag", ""],
  ["auto_delete", "Deleted with its last consumer", "flag", ""],
  ["durable", "Survives a restart of the broker", "flag", ""],
];

export const DEFAULTS = {
  max_deliveries: 0, dead_letter: null, dead_letter_exchange: null, dead_letter_key: null, retry_base_ms: 1000, retry_factor: 2,
  retry_max_ms: 3600000, retry_jitter: 0, hold_ms: 30000, ttl_ms: null, max_length: null, max_bytes: null, overflow: "reject",
  dedup_window_ms: 0, expires_ms: null, max_priority: 9, single_active: false, auto_delete: false, durable: true,
};

export function settingsFields(settings = DEFAULTS) {
  return h("div", { class: "fields" }, FIELDS.map(([name, label, kind, hint]) => {
    const value = settings[name] ?? "";
    if (kind === "flag") return field({ label, name, type: "checkbox", value: settings[name] });
    if (kind === "overflow") return field({ label, name, value, options: OVERFLOW });
    if (kind === "text") return field({ label, name, value, hint });
    return field({ label, name, type: "number", min: 0, step: "any", value, hint });
  }));
}

/** The settings of a form. What is left empty is no limit where there can be none, else the default. */
export function settingsOf(values) {
  const settings = {};
  for (const [name, , kind] of FIELDS) {
    const value = values[name];
    if (kind === "flag" || kind === "overflow") settings[name] = value;
    else if (value === "") settings[name] = DEFAULTS[name];
    else settings[name] = kind === "text" ? value : Number(value);
  }
  return settings;
}

/** Those that differ from the defaults come first: they are what somebody chose. */
export function settingsList(settings) {
  const differs = ([name]) => (settings[name] ?? null) !== DEFAULTS[name];
  const chosen = FIELDS.filter(differs).map((one) => [said(one), h("b", {}, spell(one, settings[one[0]]))]);
  const others = FIELDS.filter((one) => !differs(one)).map((one) => [said(one), spell(one, settings[one[0]])]);
  const more = [["policy", settings.policy], ["declared by AMQP as", settings.queue_type], ["belongs to one connection", settings.exclusive ? "yes" : null]];
  return h("div", {},
    pairs([...chosen, ...more.filter(([, value]) => value)]),
    chosen.length ? null : h("p", { class: "muted" }, "All settings have their defaults."),
    h("details", {}, h("summary", {}, "Settings with their defaults"), pairs(others)));
}

/** The unit is in the value where it is spelled. */
const said = ([, label]) => label.replace(" (ms)", "");

function spell([, , kind], value) {
  if (value === null || value === undefined || value === "") return "–";
  if (kind === "flag") return value ? "yes" : "no";
  if (kind === "ms") return value === 0 ? "0" : duration(value);
  if (kind === "bytes") return bytes(value);
  if (kind === "overflow") return OVERFLOW.find(([known]) => known === value)?.[1] ?? value;
  return kind === "number" && Number.isInteger(value) ? count(value) : String(value);
}
