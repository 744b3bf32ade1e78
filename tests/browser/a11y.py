"""Whether a page can be used by everybody: checks written by hand, which run everywhere, and axe-core where npm has it.

`assert_accessible(page)` looks at the page as it is now, in the light and the dark theme; `assert_axe(page)` asks
axe-core for the same page, and skips the test where the registry is away, so call it last.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.npm import node_modules

AXE_VERSION = "4.14.0"
THEMES = ("light", "dark")
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE_COLOURS = ["color-contrast", "link-in-text-block"]

CHECK = r"""
() => {
  const problems = [];
  const say = (element, text) => problems.push(`${text}: ${element.outerHTML.slice(0, 160)}`);
  const shown = (element) => element.checkVisibility({ checkOpacity: false, visibilityProperty: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);
  const byId = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent || "").join(" ");
  const nameOf = (element) => (element.getAttribute("aria-labelledby") && byId(element.getAttribute("aria-labelledby")))
    || element.getAttribute("aria-label") || [...(element.labels || [])].map((label) => label.textContent).join(" ")
    || (element.matches("input, select, textarea") ? "" : element.textContent.trim())
    || [...element.querySelectorAll("img[alt]")].map((image) => image.alt).join(" ")
    || element.getAttribute("title") || "";

  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title.trim()) problems.push("the page has no title");
  for (const one of all("input:not([type=hidden]), select, textarea, button, a[href], summary, dialog[open], progress,"
      + " meter, [role=img], [role=tab], [role=button], [role=region], [role=tablist], [role=tabpanel]")) {
    if (!nameOf(one).trim()) say(one, "has no name");
  }
  for (const one of all("img")) if (!one.hasAttribute("alt")) say(one, "has no alt");

  const headings = all("h1, h2, h3, h4, h5, h6");
  const firsts = headings.filter((one) => one.tagName === "H1");
  if (firsts.length !== 1) problems.push(`there are ${firsts.length} h1`);
  let level = 0;
  for (const one of headings) {
    const next = Number(one.tagName[1]);
    if (next > level + 1) say(one, `h${level} is followed by`);
    level = next;
  }
  for (const landmark of ["main", "nav"]) {
    if (!document.querySelector(landmark)) problems.push(`there is no <${landmark}>`);
  }
  for (const table of all("table")) {
    if (!table.caption && !table.getAttribute("aria-label")) say(table, "has no caption");
    if (!table.querySelector("th")) say(table, "has no headers");
    for (const header of table.querySelectorAll("th")) {
      if (header.closest("thead") && !header.scope) say(header, "has no scope");
      if (!header.textContent.trim()) say(header, "is an empty header");
    }
  }

  const roles = new Set(("alert alertdialog application article banner button cell checkbox columnheader combobox"
    + " complementary contentinfo dialog document feed figure form graphics-document grid gridcell group heading img"
    + " link list listbox listitem log main marquee menu menubar menuitem meter navigation none note option"
    + " presentation progressbar radio radiogroup region row rowgroup rowheader scrollbar search searchbox separator"
    + " slider spinbutton status switch tab table tablist tabpanel term textbox timer toolbar tooltip tree treegrid"
    + " treeitem").split(" "));
  for (const one of document.querySelectorAll("[role]")) {
    if (!roles.has(one.getAttribute("role"))) say(one, "has a role that does not exist");
  }
  for (const one of document.querySelectorAll("[role=tab]")) {
    if (!one.parentNode.matches("[role=tablist]")) say(one, "is a tab outside of a tablist");
    if (!one.hasAttribute("aria-selected")) say(one, "does not tell whether it is selected");
  }
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const one of document.querySelectorAll(`[${name}]`)) {
      for (const id of one.getAttribute(name).split(/\s+/)) {
        if (!document.getElementById(id)) say(one, `${name} names nothing`);
      }
    }
  }
  const ids = new Set();
  for (const one of document.querySelectorAll("[id]")) {
    if (ids.has(one.id)) say(one, "has the id of another");
    ids.add(one.id);
  }
  for (const one of document.querySelectorAll("[tabindex]")) if (one.tabIndex > 0) say(one, "jumps the order of Tab");

  // Contrast: the colour of every text that is shown, over the backgrounds behind it.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const seen = new Map();
  const rgba = (text) => {
    if (!seen.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      seen.set(text, [r, g, b, a / 255]);
    }
    return seen.get(text);
  };
  const over = (top, under) => top.slice(0, 3).map((value, i) => value * top[3] + under[i] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const judge = (element, style) => {
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const back = ground(element);
    const found = contrast(over(rgba(style.color), back), back);
    if (found < needed) say(element, `has a contrast of ${found.toFixed(2)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const judged = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || judged.has(element)) continue;
    judged.add(element);
    if (element.closest("noscript, script, style, option, svg")) continue;
    if (shown(element) && !element.closest(":disabled")) judge(element, getComputedStyle(element));
  }
  for (const one of all("input, textarea")) {
    judge(one, getComputedStyle(one));
    if (one.placeholder) judge(one, getComputedStyle(one, "::placeholder"));
  }
  return problems;
}
"""


def problems(page: Any) -> list[str]:
    """What the checks written by hand find, in both themes."""
    found: list[str] = []
    for theme in _themes(page):
        found += [f"{theme}: {problem}" for problem in page.evaluate(CHECK)]
    return found


def assert_accessible(page: Any) -> None:
    found = problems(page)
    assert not found, "\n".join(found)


def assert_axe(page: Any) -> None:
    """Skips the test where axe-core cannot be had."""
    source = _axe()
    found: list[str] = []
    for theme in _themes(page):
        if not page.evaluate("'axe' in window"):
            page.evaluate(source)  # not a script of the page, so its content security policy has no say
        # All but the colours is the same in both themes.
        rules = {"type": "tag", "values": AXE_TAGS} if theme == THEMES[0] else {"type": "rule", "values": AXE_COLOURS}
        answer = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules)
        for rule in answer["violations"]:
            found += [f"{theme}: {rule['id']}: {node['html'][:160]} {node['failureSummary']}" for node in rule["nodes"]]
    assert not found, "\n".join(found)


def _themes(page: Any) -> Any:
    before = page.evaluate("document.documentElement.dataset.theme")
    for theme in THEMES:
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        yield theme
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", before)


@cache
def _axe() -> str:
    return (node_modules("axe-core", AXE_VERSION) / "axe-core" / "axe.min.js").read_text()
