// Elements made by plain function calls, and `morph`, which brings what is shown up to date without losing focus,
// scroll position or what somebody is typing. Text is always text: nothing here parses HTML.

const HANDLERS = Symbol("handlers");
const KEPT = Symbol("kept");
const SVG = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "title", "polyline", "defs", "marker"]);

/** h("a", {href: "#/", onclick: f, class: "x"}, "text", child, [more], null) */
export function h(tag, props, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  node[HANDLERS] = {};
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      node[name] = value;
      node[HANDLERS][name] = value;
    } else if (name === "style") {
      for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    } else if (name === "value" && "value" in node) {
      node.value = value;
      if (tag === "input" || tag === "option") node.setAttribute("value", value);
    } else if (value === true) {
      node.setAttribute(name, "");
      if (name === "checked" || name === "selected" || name === "disabled") node[name] = true;
    } else {
      node.setAttribute(name, value);
    }
  }
  append(node, children);
  if (tag === "select" && props && props.value !== undefined) node.value = props.value;
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child instanceof Node ? child : String(child));
  }
}

/** Empties `node` and fills it. */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  settle(node);
  return node;
}

/**
 * A stand-in for an element that the page keeps (a form, a chart), for use within what is given to `morph`: the element
 * itself stays where it is, with all that is in it, instead of being taken out and put in again at every drawing.
 */
export function keep(element) {
  const mark = document.createElement("template");
  mark[KEPT] = element;
  return mark;
}

function settle(node) {
  for (const mark of node.querySelectorAll("template")) if (mark[KEPT]) mark.replaceWith(mark[KEPT]);
}

/** Makes the children of `node` look like `children`, keeping the elements that are there where they fit. */
export function morph(node, ...children) {
  const wanted = document.createElement("div");
  append(wanted, children);
  morphChildren(node, wanted);
}

function morphChildren(node, wanted) {
  const fresh = [...wanted.childNodes];
  const keyed = new Map();
  const names = new Set(fresh.map(keyOf));
  const kept = new Set(fresh.map((child) => child[KEPT]));
  for (const child of [...node.children]) {
    const key = keyOf(child);
    // What goes, goes first: then those that stay need not move, and moving is what would cost them the focus.
    if (key && !names.has(key)) child.remove();
    else if (key) keyed.set(key, child);
  }
  let at = node.firstChild;
  for (const one of fresh) {
    while (at && kept.has(at) && at !== one[KEPT]) at = at.nextSibling;
    const key = keyOf(one);
    const known = one[KEPT] || (key ? keyed.get(key) : undefined);
    if (known && known.parentNode === node && known !== at) move(node, known, at);
    if (one[KEPT]) {
      if (one[KEPT].parentNode !== node) node.insertBefore(one[KEPT], at);
      at = one[KEPT].nextSibling;
      continue;
    }
    const old = known || at;
    if (old && alike(old, one)) {
      update(old, one);
      at = old.nextSibling;
    } else {
      node.insertBefore(one, at);
      if (one.nodeType === Node.ELEMENT_NODE) settle(one);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const keyOf = (node) => (node.dataset && node.dataset.key) || "";

/** With `moveBefore`, where the browser has it, an element keeps its focus and its scroll position on the way. */
function move(node, child, before) {
  if (node.moveBefore) node.moveBefore(child, before);
  else node.insertBefore(child, before);
}

function alike(old, fresh) {
  if (old.nodeType !== fresh.nodeType) return false;
  if (old.nodeType !== Node.ELEMENT_NODE) return true;
  return old.tagName === fresh.tagName && keyOf(old) === keyOf(fresh);
}

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // An open <details> or <dialog> stays as whoever opened it left it.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) === value) continue;
    // The content security policy forbids style as an attribute, not as a property.
    if (name === "style") old.style.cssText = value;
    else old.setAttribute(name, value);
  }
  const before = old[HANDLERS] || {};
  const after = fresh[HANDLERS] || {};
  for (const name of Object.keys(before)) if (!(name in after)) old[name] = null;
  for (const name of Object.keys(after)) old[name] = after[name];
  old[HANDLERS] = after;
  if ("disabled" in old) old.disabled = fresh.disabled;
  if (old.tagName === "TEXTAREA") return;
  if (old.tagName === "SELECT" || old.tagName === "INPUT") {
    // What a person has entered is theirs; only an element that nobody is in follows the page.
    if (old !== document.activeElement && old.dataset.own === undefined) {
      if (old.tagName === "SELECT") morphChildren(old, fresh);
      if (old.type === "checkbox") old.checked = fresh.checked;
      else if (old.value !== fresh.value) old.value = fresh.value;
    }
    return;
  }
  morphChildren(old, fresh);
}
