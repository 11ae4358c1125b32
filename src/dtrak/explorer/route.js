// Read and change the address: #screen/id?set=…&method=…&damping=… . Parameters with their default values are left out.

let defaults = {};

export function setDefaults(values) {
  defaults = values;
}

export function isDefault(name, here) {
  return here[name] === defaults[name];
}

export function route() {
  const [path, query] = splitOnce(location.hash.slice(1) || "pictures", "?");
  const [screen, id] = splitOnce(path, "/");
  return { screen, id: safelyDecoded(id), ...defaults, ...Object.fromEntries(new URLSearchParams(query)) };
}

// Return the address of another screen, with the same set, method and damping unless `changes` has others.
export function link(screen, id = "", changes = {}) {
  const { set, method, damping } = route();
  const kept = Object.entries({ set, method, damping, ...changes });
  const query = new URLSearchParams(kept.filter(([name, value]) => value !== "" && value !== defaults[name]));
  return `#${screen}${id === "" ? "" : `/${encodeURIComponent(id)}`}${query.size ? `?${query}` : ""}`;
}

// The lists that were shown last, so that the way back leads to the same page, search and order.
const places = {};
export function remember(here) {
  places[here.screen] = { hash: location.hash, set: here.set };
}
export function lastPlace(screen, { set, method, damping }) {
  const last = places[screen];
  if (!last || (screen === "pictures" && last.set !== set)) return link(screen);
  const [path, query] = splitOnce(last.hash, "?");
  const now = new URLSearchParams(query);
  for (const [name, value] of Object.entries({ set, method, damping })) value === defaults[name] ? now.delete(name) : now.set(name, value);
  return now.size ? `${path || `#${screen}`}?${now}` : path || `#${screen}`;
}

// Change parameters of the address, without a new entry in the browser's history.
export function change(changes) {
  const { screen, id, ...rest } = route();
  history.replaceState(null, "", link(screen, id, { ...rest, ...changes }));
  dispatchEvent(new CustomEvent("changed", { detail: changes }));
}

// Open another address, as a link would.
export const arrival = { by: "" };
export function go(hash) {
  arrival.by = "link";
  location.hash = hash;
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function safelyDecoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
