// Calls of the broker's HTTP API. Errors are ApiError with the sentence that the broker said.

const KEY = "waystation.token";
const OURS = { "x-requested-with": "dashboard" }; // no dialog of the browser's own: this page asks for the password

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the broker answered ${status}`);
    this.status = status;
    this.error = problem.error || "";
    this.field = problem.field || "";
  }
}

let askForToken = null;

/** `ask` is called when the broker wants a token, and resolves to whether there is one now (see `tryToken`). */
export function onToken(ask) {
  askForToken = ask;
}

/** Keeps a token for this window if the broker takes it; throws its sentence if not. */
export async function tryToken(token) {
  const answer = await reach("/v1/overview", { headers: { authorization: `Bearer ${token}` }, cache: "no-store" });
  if (answer.status === 401) throw new ApiError(401, await answer.json());
  sessionStorage.setItem(KEY, token);
}

/** Whether the broker wants a name and a password, and not a token. */
export async function wantsPassword() {
  const answer = await reach("/v1/whoami", { cache: "no-store" });
  return answer.ok && (await answer.json()).required;
}

/** Begins a session, whose cookie the browser keeps; throws the broker's sentence if the login is refused. */
export async function logIn(user, password) {
  const init = { method: "POST", headers: { "content-type": "application/json" }, cache: "no-store" };
  const answer = await reach("/v1/login", { ...init, body: JSON.stringify({ user, password }) });
  if (!answer.ok) throw new ApiError(answer.status, await answer.json());
  sessionStorage.removeItem(KEY);
}

export function headers(extra = {}) {
  const token = sessionStorage.getItem(KEY);
  return { ...OURS, ...extra, ...(token ? { authorization: `Bearer ${token}` } : {}) };
}

/** A path of encoded parts: path`/v1/queues/${name}/messages`. */
export function path(parts, ...values) {
  return parts.reduce((all, part, i) => all + encodeURIComponent(values[i - 1]) + part);
}

export async function call(method, target, { query, body, signal, raw } = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) words.append(name, one);
  }
  const address = words.size ? `${target}?${words}` : target;
  const init = { method, signal, headers: headers({ accept: "application/json" }), cache: "no-store" };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["content-type"] = "application/json";
  }
  let answer = await reach(address, init);
  if (answer.status === 401 && askForToken && await askForToken()) {
    init.headers = headers(init.headers);
    answer = await reach(address, init);
  }
  if (raw) return answer;
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { detail: text.slice(0, 200) };
  }
  if (!answer.ok) throw new ApiError(answer.status, value || {});
  return value;
}

async function reach(address, init) {
  try {
    return await fetch(address, { ...init, headers: { ...OURS, ...init.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "the broker does not answer; this page tries again by itself" });
  }
}

export const get = (target, query, signal) => call("GET", target, { query, signal });
export const post = (target, body, query) => call("POST", target, { body, query });
export const put = (target, body, query) => call("PUT", target, { body, query });
export const patch = (target, body, query) => call("PATCH", target, { body, query });
export const del = (target, query) => call("DELETE", target, { query });
