// Exchanges and bindings as a picture: exchanges on the left, where they lead on the right. Every binding has a line of
// its own on both sides, so that neither its end nor its label ever lies on another's. It shows what it is given: a page.

import { h } from "./dom.js";

const LINE = 24;
const GAP = 12;
const LEFT = 8;
const BOX = 230;
const WIDTH = 940;
const RIGHT = WIDTH - BOX - 8;
const LABEL = 26;
const NAME = 30;

/** bindings: [{exchange, target, key, arguments}], kinds: name -> kind; `hit`: targets to show as reached from `from`. */
export function routingPicture(page, kinds, { hit = null, from = null, choose = () => {} } = {}) {
  const bindings = page.map((binding) => ({ ...binding }));
  const { sources, targets } = arranged(bindings, kinds);
  const low = Math.max(bottom(sources), bottom(targets)) + GAP;
  const reached = (target) => hit !== null && hit.has(target);
  const words = `${sources.length} exchanges with ${bindings.length} bindings to ${targets.length} targets`;
  return h("div", { class: "scroll picture-box", tabindex: "0", role: "region", "aria-label": "Picture of the routing" },
    h("svg", { class: "picture", viewBox: `0 0 ${WIDTH} ${low}`, width: WIDTH, height: low, role: "img", "aria-label": words },
      bindings.map((binding) => edge(binding, reached(binding.target) && binding.exchange === from)),
      sources.map((node) => box(node, LEFT, node.name || "(default)", kinds.get(node.name) || "", node.name === from, () => choose(node.name))),
      targets.map((node) => box(node, RIGHT, nameOf(node.name), kindOf(node.name), reached(node.name), () => choose(nameOf(node.name))))));
}

export const kindOf = (target) => target.slice(0, Math.max(0, target.indexOf(":")));
export const nameOf = (target) => target.slice(target.indexOf(":") + 1);

/** What a binding asks for, in a few words. */
export function labelOf({ key, arguments: asked }) {
  const { filter, ...rest } = asked || {};
  if (filter !== undefined) return String(filter);
  const pairs = Object.entries(rest).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return [key, ...pairs].filter((part) => part !== "" && part !== undefined).join(" ");
}

/** Nodes with their places; a binding gets `out` and `into`, the heights of its two ends. */
function arranged(bindings, kinds) {
  const sources = nodesOf(bindings, "exchange", [...kinds.keys()]);
  const order = new Map(sources.map((node, i) => [node.name, i]));
  // Targets come in the order of the exchanges that lead there: fewer lines cross.
  const mean = (node) => node.lines.reduce((sum, { exchange }) => sum + order.get(exchange), 0) / node.lines.length;
  const targets = nodesOf(bindings, "target").map((node) => [mean(node), node]).sort(([a], [b]) => a - b).map(([, node]) => node);
  const places = new Map(targets.map((node, i) => [node.name, i]));
  for (const node of sources) node.lines.sort((a, b) => places.get(a.target) - places.get(b.target));
  for (const node of targets) node.lines.sort((a, b) => order.get(a.exchange) - order.get(b.exchange));
  stack(sources, "out");
  stack(targets, "into");
  return { sources, targets };
}

function nodesOf(bindings, side, order = []) {
  const found = new Map();
  for (const binding of bindings) {
    const node = found.get(binding[side]) || { name: binding[side], lines: [] };
    node.lines.push(binding);
    found.set(binding[side], node);
  }
  return [...found.values()].sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name) || 0);
}

function stack(nodes, end) {
  let y = GAP;
  for (const node of nodes) {
    node.y = y;
    node.height = Math.max(1.6, node.lines.length) * LINE;
    const first = node.y + (node.height - (node.lines.length - 1) * LINE) / 2;
    node.lines.forEach((binding, i) => { binding[end] = first + i * LINE; });
    y += node.height + GAP;
  }
}

const bottom = (nodes) => (nodes.length ? nodes[nodes.length - 1].y + nodes[nodes.length - 1].height : LINE);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function box({ y, height }, x, name, kind, hit, choose) {
  return h("g", { class: hit ? "node hit" : "node", onclick: choose },
    h("title", {}, `${kind} ${name}`),
    h("rect", { x, y, width: BOX, height, rx: 7 }),
    h("text", { x: x + 10, y: y + height / 2 - 1 }, cut(name, NAME)),
    h("text", { x: x + 10, y: y + height / 2 + 13, class: "kind" }, kind));
}

function edge(binding, hit) {
  const x1 = LEFT + BOX;
  const x2 = RIGHT;
  const middle = (x1 + x2) / 2;
  const label = labelOf(binding);
  return h("g", { class: hit ? "edge hit" : "edge" },
    h("title", {}, `${binding.exchange} → ${binding.target}${label ? `: ${label}` : ""}`),
    h("path", { d: `M${x1} ${binding.out}C${middle} ${binding.out} ${middle - 60} ${binding.into} ${x2 - 190} ${binding.into}L${x2} ${binding.into}` }),
    h("circle", { cx: x2 - 4, cy: binding.into, r: 3.5 }),
    h("text", { x: x2 - 12, y: binding.into - 5, "text-anchor": "end" }, cut(label, LABEL)));
}
