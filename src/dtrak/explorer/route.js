// Where we are, as the address has it: #view/id?set=…&method=…&damping=… . What is as it was at first is left out.

let defaults = {};

export function setDefaults(values) {
  defaults = values;
}

export function route() {
  const [path, query] = splitOnce(location.hash.slice(1) || "pictures", "?");
  const [view, id] = splitOnce(path, "/");
  return { view, id: safelyDecoded(id), ...defaults, ...Object.fromEntries(new URLSearchParams(query)) };
}

// The address of another place, with the same set, method and damping unless `changes` says otherwise.
export function link(view, id = "", changes = {}) {
  const { set, method, damping } = route();
  const kept = Object.entries({ set, method, damping, ...changes });
  const query = new URLSearchParams(kept.filter(([name, value]) => value !== "" && value !== defaults[name]));
  return `#${view}${id === "" ? "" : `/${encodeURIComponent(id)}`}${query.size ? `?${query}` : ""}`;
}

// The same place with something changed, without a new step in the history.
export function change(changes) {
  const { view, id, ...rest } = route();
  history.replaceState(null, "", link(view, id, { ...rest, ...changes }));
  dispatchEvent(new CustomEvent("changed", { detail: changes }));
}

// Another place, as a link would lead there.
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
