// A pipeline as a picture: sources on the left, steps in between, sinks on the right, each with its live numbers. A part
// that has failed is red, one that has lost rows yellow. The picture has a text that says the same, for those who cannot see it.

import { h } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";

const BOX = 196;
const HEAD = 46;
const LINE = 17;
const ACROSS = 56;
const DOWN = 16;
const EDGE = 8;
const NAME = 25;
const TEXT = 31;
const MOST = 100;

/** info: what the broker says of one pipeline; null if it has not said of what it is made. */
export function pipelinePicture(info) {
  const graph = (info.graph || []).slice(0, MOST);
  if (!graph.length) return null;
  const { nodes, paths } = placed(graph.map((node) => ({ ...node, ...numbersOf(node, info) })));
  const width = Math.max(...nodes.map(({ x }) => x)) + BOX + EDGE;
  const height = Math.max(...nodes.map((node) => node.y + node.height), ...paths.flat().map(({ y }) => y)) + EDGE;
  const words = `${info.pipeline}: ${nodes.map(spoken).join("; ")}`;
  return h("div", { class: "scroll picture-box", tabindex: "0", role: "region", "aria-label": "Picture of the pipeline" },
    h("svg", { class: "picture still", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words },
      paths.map(edge), nodes.map(box)),
    info.graph.length > MOST ? h("p", { class: "muted" }, `The first ${MOST} of ${info.graph.length} parts.`) : null);
}

const spoken = (node) => [`${node.kind} ${labelOf(node)}`, node.failed ? "failed" : "", ...node.lines].filter(Boolean).join(", ");
const labelOf = ({ kind, name }) => (kind === "sink" ? name.slice(name.indexOf(":") + 1) : name);

/** What is known of a part: at most two lines. */
function numbersOf(node, info) {
  if (node.kind === "sink") {
    const sink = info.sinks.find((one) => `sink:${one.sink}` === node.name);
    if (!sink) return { lines: [] };
    const late = sink.lag ? `${count(sink.lag)} behind` : "";
    return { lines: [`${rate(sink.rows_per_s)}, ${count(sink.rows)} written`, late], failed: Boolean(sink.error) };
  }
  if (node.kind === "step") return { lines: [] };
  const read = sourcesOf(node, info.sinks);
  if (!read.length) return { lines: [] };
  const sum = (key) => read.reduce((total, one) => total + (one[key] || 0), 0);
  const most = (key) => Math.max(0, ...read.map((one) => one[key] || 0));
  const behind = read.some(({ lag }) => lag !== null) ? `${count(most("lag"))} behind${most("lag_ms") ? ` (${duration(most("lag_ms"))})` : ""}` : "";
  const lost = sum("lost") ? `${count(sum("lost"))} lost` : "";
  return {
    lines: [`${rate(sum("rows_per_s"))}${sum("bytes") ? `, about ${bytes(sum("bytes"))}` : ""}`, [behind, lost].filter(Boolean).join(", ")],
    warned: Boolean(lost),
  };
}

/** What each query says of a source; sinks of one query say the same. */
function sourcesOf({ text }, sinks) {
  const queries = new Map(sinks.map((sink) => [sink.query_id || sink.sink, sink.sources || []]));
  return [...queries.values()].flat().filter(({ source }) => source === text);
}

/**
 * A column for each step away from the sources; sinks stand in the last one. A line that passes by a column has a place
 * of its own there, so that it never runs below a box. `paths`: the stations of each line, first to last.
 */
function placed(nodes) {
  const depth = new Map();
  for (const node of nodes) depth.set(node.name, Math.max(0, ...node.inputs.map((name) => (depth.get(name) ?? 0) + 1)));
  const last = Math.max(1, ...depth.values());
  const columns = Array.from({ length: last + 1 }, () => []);
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const paths = [];
  for (const node of nodes) {
    node.column = node.kind === "sink" ? last : depth.get(node.name);
    node.height = HEAD + node.lines.filter(Boolean).length * LINE;
    node.before = [];
    columns[node.column].push(node);
    for (const from of node.inputs.map((name) => byName.get(name)).filter((one) => one?.column !== undefined && one !== node)) {
      const path = [from];
      for (let column = from.column + 1; column < node.column; column += 1) {
        const bend = { column, height: 0, before: [path[path.length - 1]] };
        columns[column].push(bend);
        path.push(bend);
      }
      node.before.push(path[path.length - 1]);
      paths.push([...path, node]);
    }
  }
  columns.forEach(stack);
  return { nodes, paths };
}

/** In the order of what leads there: fewer lines cross. */
function stack(column) {
  const middle = ({ before }) => (before.length ? before.reduce((sum, one) => sum + one.y + one.height / 2, 0) / before.length : 0);
  let y = EDGE;
  for (const [, one] of column.map((item) => [middle(item), item]).sort(([a], [b]) => a - b)) {
    one.x = EDGE + one.column * (BOX + ACROSS);
    one.y = y;
    y += one.height + DOWN;
  }
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function box(node) {
  const line = (text, at, kind) => (text ? h("text", { x: node.x + 11, y: node.y + at, class: kind }, cut(text, TEXT)) : null);
  return h("g", { class: `node ${node.kind}${node.failed ? " failed" : node.warned ? " warned" : ""}`, "data-key": node.name },
    h("title", {}, `${node.kind} ${labelOf(node)}: ${node.text}`),
    h("rect", { x: node.x, y: node.y, width: BOX, height: node.height, rx: 8 }),
    h("text", { x: node.x + 11, y: node.y + 20 }, cut(labelOf(node), NAME)),
    line(node.text === labelOf(node) ? node.kind : node.text || node.kind, 36, "kind"), line(node.lines[0], 54, "number"), line(node.lines[1], 70, "number"));
}

function edge(path) {
  const to = path[path.length - 1];
  const height = (one) => one.y + one.height / 2;
  let d = `M${path[0].x + BOX} ${height(path[0])}`;
  for (const [i, one] of path.slice(1).entries()) {
    const [y1, y2] = [height(path[i]), height(one)];
    d += `C${one.x - ACROSS / 2} ${y1} ${one.x - ACROSS / 2} ${y2} ${one.x - (one === to ? 4 : 0)} ${y2}`;
    if (one !== to) d += `L${one.x + BOX} ${y2}`;
  }
  return h("g", { class: to.failed ? "edge failed" : "edge" }, h("path", { d }), h("circle", { cx: to.x - 4, cy: height(to), r: 3.5 }));
}
