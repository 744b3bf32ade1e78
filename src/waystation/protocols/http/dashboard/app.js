// The frame around the pages: finds the page of the address, opens it, and closes what it leaves behind.
//
// A page is a module with `open(view)`, which draws into `view.element`. A view has
//   params   the parts of the address behind the page's name, decoded    query   URLSearchParams of the address
//   live     on(kind, f): events of the live feed                        every   (ms, f): at once, and again and again
//   signal   aborted when the page is left                               go      (address): another page
//   title    (text): of the browser's window                             setQuery({name: value}): in the address, without a new visit
//   act      (work): does it now; where it fails, says so in passing
//   draw     (...children): brings the page up to date (see `morph`; `keep` for forms and charts within)
// `live` and `every` end with the page. A page that throws is shown as a sentence. While the broker does not answer, what
// is drawn stays, and `every` goes on asking.

import { ApiError, logIn, onToken, tryToken, wantsPassword } from "./lib/api.js";
import { fill, h, morph } from "./lib/dom.js";
import { several } from "./lib/format.js";
import { Live } from "./lib/live.js";
import { badge, button, field, formDialog, notice, toast } from "./lib/widgets.js";

const PAGES = [
  ["", "Overview", "overview"],
  ["topics", "Topics", "topics"],
  ["queues", "Queues", "queues"],
  ["delayed", "Delayed", "delayed"],
  ["groups", "Groups", "groups"],
  ["dead-letters", "Dead letters", "dead_letters"],
  ["routing", "Routing", "routing"],
  ["pipelines", "Pipelines", "pipelines"],
  ["connections", "Connections", "connections"],
  ["cluster", "Cluster", "cluster"],
  ["keys", "API keys", "keys"],
  ["audit", "Audit", "audit"],
  ["settings", "Settings", "settings"],
  ["messages", "", "message"],
];

const live = new Live();
const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leave = () => {};

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decode);
  return { name: parts[0], params: parts.slice(1).filter((part) => part !== ""), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody wrote a lone % by hand
  }
}

async function visit() {
  leave();
  const { name, params, query } = address();
  let shown = location.hash;
  const page = PAGES.find(([known]) => known === name);
  const title = page ? page[1] || "Message" : "Not found";
  document.title = `${title} · Waystation`;
  drawNav(name);
  const abort = new AbortController();
  const endings = [() => abort.abort()];
  leave = () => endings.splice(0).forEach((end) => end());
  const element = h("div", {});
  fill(main, element);
  window.scrollTo(0, 0);
  const failed = (error) => {
    if (abort.signal.aborted || error.name === "AbortError") return false;
    const known = error instanceof ApiError;
    if (!known) console.error(error);
    const away = known && !error.status;
    if (away && element.childElementCount) return true;
    const again = () => abort.signal.aborted || visit();
    fill(element, h("h1", {}, title), notice(error.message, "bad"), button("Try again", again));
    if (away) setTimeout(again, 3000);
    return false;
  };
  const view = {
    element, params, query, signal: abort.signal,
    title: (text) => { document.title = `${text} · Waystation`; },
    go: (to) => { location.hash = to; },
    setQuery: (values) => { shown = setQuery(shown, query, values); },
    live: { on: (kind, listener) => endings.push(live.on(kind, listener)) },
    every: (ms, work) => endings.push(every(ms, work, failed)),
    act: (work) => act(work, abort.signal),
    draw: (...children) => { if (!abort.signal.aborted) morph(element, ...children); },
  };
  if (!page) {
    fill(element, h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
    return;
  }
  try {
    const module = await load(page[2]);
    if (!abort.signal.aborted) await module.open(view);
  } catch (error) {
    failed(error);
  }
}

async function load(file) {
  try {
    return await import(`./pages/${file}.js`);
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError(0, { detail: "the broker does not answer; this page tries again by itself" });
    throw error;
  }
}

/** Runs `work` now and every `ms` while the page can be seen; a run that takes longer is waited for. */
function every(ms, work, failed) {
  let timer = 0;
  let over = false;
  const run = async () => {
    let goOn = true;
    try {
      if (!document.hidden) await work();
    } catch (error) {
      goOn = !over && failed(error);
    }
    if (!over && goOn) timer = setTimeout(run, ms);
  };
  run();
  return () => {
    over = true;
    clearTimeout(timer);
  };
}

async function act(work, signal) {
  try {
    return await work();
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return undefined;
    if (!(error instanceof ApiError)) console.error(error);
    toast(error.message);
    return undefined;
  }
}

/** The address that is shown then. A link that was clicked meanwhile wins: its address is not written over. */
function setQuery(shown, query, values) {
  if (location.hash !== shown) return shown;
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const [path] = location.hash.split("?");
  history.replaceState(null, "", query.size ? `${path || "#/"}?${query}` : path || "#/");
  return location.hash;
}

function drawNav(current) {
  fill(nav, PAGES.filter(([, title]) => title).map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, title)));
  nav.classList.remove("open");
  document.getElementById("menu").setAttribute("aria-expanded", "false");
}

function drawHealth(health) {
  const tone = { ok: "good", warning: "warn", failing: "bad" }[health.status] || "";
  const text = { ok: "healthy", warning: several(health.reasons.length, "warning"), failing: "failing" }[health.status] || health.status;
  morph(document.getElementById("health"), h("a", { href: "#/", title: health.reasons.map((reason) => reason.what).join("\n") || null }, badge(text, tone)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("waystation.theme") || (dark.matches ? "dark" : "light");
  setTheme(chosen());
  dark.addEventListener("change", () => setTheme(chosen()));
  document.getElementById("theme").onclick = () => {
    localStorage.setItem("waystation.theme", chosen() === "dark" ? "light" : "dark");
    setTheme(chosen());
  };
}

function tokenDialog() {
  const input = field({ label: "Token", name: "token", type: "password", required: true, hint: "the broker's setting waystation.http.token" });
  return formDialog("This broker asks for a token", [input], (values) => tryToken(values.token.trim()), { action: "Continue", stay: true });
}

function loginDialog() {
  const user = field({ label: "User", name: "user", required: true });
  const password = field({ label: "Password", name: "password", type: "password", required: true });
  return formDialog("Log in", [user, password], (values) => logIn(values.user.trim(), values.password), { action: "Log in", stay: true });
}

let asking = null;
let declined = false;
let offer = "Enter a token";

async function dialogFor() {
  const password = await wantsPassword();
  offer = password ? "Log in" : "Enter a token";
  return password ? loginDialog() : tokenDialog();
}

/** One dialog, however many calls want a token; who has closed it is not asked again, but can ask for it. */
async function askForToken() {
  if (declined) return false;
  asking ??= dialogFor();
  const given = await asking;
  asking = null;
  declined = !given;
  if (given) live.again();
  else morph(document.getElementById("health"), button(offer, giveToken));
  return given;
}

async function giveToken() {
  declined = false;
  if (await askForToken()) visit();
}

onToken(askForToken);
startTheme();
document.getElementById("menu").onclick = (event) => {
  const open = nav.classList.toggle("open");
  event.currentTarget.setAttribute("aria-expanded", String(open));
};
nav.onclick = () => {
  if (nav.classList.contains("open")) document.getElementById("menu").click();
};
document.getElementById("skip").onclick = () => main.focus();
document.getElementById("find").onsubmit = (event) => {
  event.preventDefault();
  const id = document.getElementById("find-id").value.trim();
  if (id) location.hash = `#/messages/${encodeURIComponent(id)}`;
};
live.on("overview", (overview) => drawHealth(overview.health));
live.on("state", (state) => {
  if (state === "away" && !declined) morph(document.getElementById("health"), badge("not connected", "bad"));
});
window.addEventListener("hashchange", () => {
  for (const dialog of document.querySelectorAll("dialog[open]:not([data-stay])")) dialog.close();
  visit();
  main.focus({ preventScroll: true });
});
// The other pages come while nobody waits for them, so that all are there when the broker is away for a moment.
visit().then(() => setTimeout(() => PAGES.forEach(([, , file]) => import(`./pages/${file}.js`).catch(() => {})), 1000));
