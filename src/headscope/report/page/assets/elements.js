// Elements, handlers and numbers: what all other files build on. Names from runs only ever become text nodes.

const page = JSON.parse(document.getElementById("data").textContent);

// The longest any handler took, its layout included, in milliseconds; for those who measure.
window.headscope = { slowest: 0, slowestName: "", handled: 0 };

function timed(name, handler) {
  return (event) => {
    const began = performance.now();
    handler(event);
    document.body.getBoundingClientRect();
    const took = performance.now() - began;
    window.headscope.handled += 1;
    if (took > window.headscope.slowest) Object.assign(window.headscope, { slowest: took, slowestName: name });
  };
}

function on(element, name, handler) {
  element.addEventListener(name, timed(name, handler));
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function button(text, handler, attributes) {
  return on(h("button", { type: "button", ...attributes }, text), "click", handler);
}

// Numbers and names

const MINUS = "\u2212";
const signOf = (text) => String(text).replace(/^-/, MINUS);
const known = (value) => typeof value === "number" && Number.isFinite(value);
const fixed = (value, digits = 3) => (known(value) ? signOf(value.toFixed(digits)) : "–");
const signed = (value, digits = 3) => (known(value) ? (value > 0 ? "+" : "") + fixed(value, digits) : "–");
const count = (value) => (known(value) ? value.toLocaleString("en") : "–");
const some = (value) => {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (!known(value)) return value === null || value === undefined || value === "" ? "–" : String(value);
  return Number.isInteger(value) ? count(value) : signOf(String(Number(value.toPrecision(4))));
};
const interval = (mid, low, high) => `${fixed(mid)} [${fixed(low)}, ${fixed(high)}]`;
const titleOf = (task) => (Object.hasOwn(page.titles, task) ? page.titles[task] : String(task));
const headName = (layer, head) => `L${layer}.H${head}`;
// Heads are chosen by name, because models of one run may have different shapes: name and place in a flat list.
const nameAt = (place, heads) => headName(Math.floor(place / heads), place % heads);
function placeAt(name, heads) {
  const found = /^L(\d+)\.H(\d+)$/.exec(name || "");
  return found && Number(found[2]) < heads ? Number(found[1]) * heads + Number(found[2]) : -1;
}
const unique = (values) => [...new Set(values)];
const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// What was chosen before the page was loaded again, as far as there still is such a choice.
function remembered(key, allowed) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(key) || "{}");
    return Object.fromEntries(Object.entries(allowed).filter(([name, values]) => values.includes(kept[name])).map(([name]) => [name, kept[name]]));
  } catch {
    return {};
  }
}

// What is chosen in a section; those who watch are told what changed. A page that follows its run remembers, under
// `key`, the choices that are in the lists of `allowed`.
function choices(start, key = "", allowed = {}) {
  const watchers = [];
  const lasting = page.live && key ? `headscope-chosen ${key}` : "";
  const chosen = { ...start, ...(lasting ? remembered(lasting, allowed) : {}) };
  return {
    get: (name) => chosen[name],
    watch(names, told) {
      watchers.push({ names: names.split(" "), told });
      told(chosen);
    },
    set(changes) {
      const changed = Object.keys(changes).filter((name) => chosen[name] !== changes[name]);
      Object.assign(chosen, changes);
      if (changed.length === 0) return;
      if (lasting) try {
        sessionStorage.setItem(lasting, JSON.stringify(Object.fromEntries(Object.keys(allowed).map((name) => [name, chosen[name]]))));
      } catch { /* a browser without storage forgets */ }
      for (const { names, told } of watchers) if (names.some((name) => changed.includes(name))) told(chosen);
    },
  };
}

// The words beside the pointer

const tip = document.getElementById("tip");

function say(event, lines) {
  tip.replaceChildren(...lines.map((line) => (line instanceof Node ? line : h("div", {}, line))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 14 + box.width > innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX - box.width - 14 : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4))}px`;
}

const hush = () => { tip.hidden = true; };

// Copying

async function copy(text, told) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  const before = told.textContent;
  told.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { told.textContent = before; }, 1200);
}

const copyButton = (text, label = "Copy", title = "") => {
  const made = button(label, () => copy(text, made), { class: "small", title: title || null });
  return made;
};

const commandLine = (text) =>
  h("div", { class: "command" }, h("code", { tabindex: "0", "aria-label": "Command" }, text), copyButton(text));

// The figures of a run whose names begin so.
const namesOf = (run, start) => run.figures.filter((name) => name.startsWith(start));

// A figure: what it shows, what to know of it, and the command that draws it for a paper.
function figureOf(title, { note = "", names = [], run = null, wide = false } = {}, ...content) {
  const line = run && names.length ? run.figure_line.replace(" --format", ` --only ${names.join(",")} --format`) : "";
  const safe = names.every((name) => /^[\w.,-]+$/.test(name));
  const tool = line && safe ? copyButton(line, "Copy figure command", line) : null;
  return h("figure", { class: wide ? "wide" : null },
    h("div", { class: "figure-head" }, h("h3", {}, title), tool), ...content,
    note ? h("figcaption", {}, note) : null);
}

// A few choices side by side, as radio buttons; nothing where there is no choice.
let groups = 0;
function choice(label, options, state, name, text = String) {
  if (options.length < 2) return null;
  const group = `choice-${groups++}`;
  const items = options.map((option) => {
    const input = h("input", { type: "radio", name: group, checked: option === state.get(name) });
    on(input, "change", () => state.set({ [name]: option }));
    return h("label", {}, input, h("span", {}, text(option)));
  });
  return h("fieldset", { class: "choice" }, h("legend", {}, label), h("div", {}, items));
}
