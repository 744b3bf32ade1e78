// A line chart in SVG: a few series over the same times. The picture has a text for those who cannot see it, and the
// newest values stand in the legend; a pointer or the arrow keys show those of another moment.

import { fill, h } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 170;
const MAX_POINTS = 300;

export class Chart {
  /** series: [{name, key}], at most four; `spell` writes a value. */
  constructor(label, series, spell) {
    this.label = label;
    this.series = series;
    this.spell = spell;
    this.times = [];
    this.values = {};
    this.at = null;
    this.picture = h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0", "aria-label": label });
    this.picture.onpointermove = (event) => this.#point(event.offsetX / this.picture.clientWidth);
    this.picture.onpointerleave = () => this.#choose(null);
    this.picture.onkeydown = (event) => this.#key(event);
    this.high = h("span", { class: "scale high" });
    this.axis = h("div", { class: "times" });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", { class: "chart" }, this.picture, this.high, this.axis, this.legend);
  }

  /** `values` has an array for every key, as long as `times` (ms). */
  set(times, values) {
    if (this.at !== null) {
      const at = times.lastIndexOf(this.times[this.at]); // the moment that is looked at moves with its time
      this.at = at < 0 ? null : at;
    }
    this.times = [...times];
    this.values = values;
    this.#draw();
  }

  #draw() {
    const count = this.times.length;
    const peak = Math.max(0, ...this.series.map(({ key }) => Math.max(0, ...(this.values[key] || []))));
    const top = peak || 1;
    const paths = this.series.map(({ key }, i) =>
      h("path", { class: `s${i + 1}`, d: outline(this.values[key] || [], top) }));
    const cursor = this.at === null ? null :
      h("line", { class: "cursor", x1: this.#x(this.at), x2: this.#x(this.at), y1: 0, y2: HEIGHT });
    const lines = [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => h("line", { class: "axis", x1: 0, x2: WIDTH, y1: y, y2: y }));
    fill(this.picture, lines, paths, cursor);
    this.high.textContent = peak ? this.spell(peak) : "";
    fill(this.axis, h("span", {}, count ? clock(this.times[0]) : ""), h("span", {}, count ? clock(this.times[count - 1]) : "no data yet"));
    const shown = this.at === null ? count - 1 : this.at;
    const words = this.series.map(({ name, key }, i) => {
      const value = (this.values[key] || [])[shown];
      return { i, name, text: value === undefined ? "–" : this.spell(value) };
    });
    fill(this.legend,
      words.map(({ i, name, text }) => h("span", {}, h("span", { class: `dot s${i + 1}` }), `${name} `, h("b", {}, text))),
      this.at === null ? null : h("span", { class: "muted" }, clock(this.times[this.at])));
    this.picture.setAttribute("aria-label", `${this.label}: ${words.map(({ name, text }) => `${name} ${text}`).join(", ")}`);
  }

  #x(index) {
    return this.times.length > 1 ? (index / (this.times.length - 1)) * WIDTH : WIDTH;
  }

  #point(share) {
    if (this.times.length > 1) this.#choose(Math.round(Math.min(1, Math.max(0, share)) * (this.times.length - 1)));
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.#choose(null);
    if (!step || !this.times.length) return;
    event.preventDefault();
    const at = (this.at === null ? this.times.length - 1 : this.at) + step;
    this.#choose(at < 0 || at >= this.times.length ? null : at);
  }

  #choose(at) {
    this.at = at;
    this.#draw();
  }
}

/** A path through all values; where there are more than a screen shows, through the highest of each group. */
function outline(values, top) {
  const group = Math.max(1, Math.ceil(values.length / MAX_POINTS));
  const points = [];
  for (let i = 0; i < values.length; i += group) {
    const high = Math.max(...values.slice(i, i + group).map((value) => value || 0));
    const x = values.length > 1 ? (Math.min(i + group - 1, values.length - 1) / (values.length - 1)) * WIDTH : WIDTH;
    points.push(`${x.toFixed(1)} ${(HEIGHT - (high / top) * (HEIGHT - 4)).toFixed(1)}`);
  }
  return points.length ? `M${points.join("L")}` : "";
}
