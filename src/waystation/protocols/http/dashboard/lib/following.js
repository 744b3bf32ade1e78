// Reading the same thing again and again for a page that keeps its place: what goes wrong is said above what is shown,
// and nothing that was typed, chosen or opened is lost. An answer that a newer one has overtaken is dropped. What takes the
// broker long is asked for less often, so that a page left open never keeps it busy.

import { ApiError } from "./api.js";
import { fill, h, morph } from "./dom.js";
import { notice } from "./widgets.js";

const REST = 10; // times as long as the answer took
const MOST_REST_MS = 10000;

/** `read()` now and every `ms`, and `draw(what it found)`. `problem` is the place for the broker's sentence; `now()` reads at once. */
export function follow(view, ms, read, draw) {
  const problem = h("div", {});
  let turn = 0;
  let due = 0;
  const now = async () => {
    const mine = ++turn;
    const begun = performance.now();
    const overtaken = () => mine !== turn || view.signal.aborted;
    try {
      const found = await read();
      if (overtaken()) return;
      draw(found);
      fill(problem);
    } catch (error) {
      if (overtaken() || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) console.error(error);
      morph(problem, notice(error.message, "bad"));
    } finally {
      const ended = performance.now();
      due = ended + Math.min(MOST_REST_MS, REST * (ended - begun));
    }
  };
  view.every(ms, () => (performance.now() < due ? null : now()));
  return { problem, now };
}

/** The last `most` values of a few series over the same times, for a chart. */
export class Trail {
  constructor(keys, most = 300) {
    this.most = most;
    this.times = [];
    this.values = Object.fromEntries(keys.map((key) => [key, []]));
  }

  add(time, values) {
    this.times.push(time);
    for (const key of Object.keys(this.values)) this.values[key].push(values[key] ?? 0);
    if (this.times.length <= this.most) return;
    this.times.shift();
    for (const key of Object.keys(this.values)) this.values[key].shift();
  }
}
