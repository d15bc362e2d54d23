// The atlas of a model: a map of all heads coloured by a chosen score, and a card per head.

const [layersOf, headsOf] = page.shape;
const places = Array.from({ length: layersOf * headsOf }, (_, place) => place);
const at = (values, place) => values[Math.floor(place / headsOf)][place % headsOf];
const weightOf = weights(page.attention);

// What heads can be coloured and ordered by: patterns, then scores of tasks, then functions.
const MEASURES = [
  ...page.patterns.names.map((name, number) => ({ name, values: page.patterns.values[number], unsigned: page.patterns.values[number].flat().every((value) => !(value < 0)) })),
  ...page.scores.map((one) => ({ name: `${titleOf(one.task)}, ${one.method}`, values: one.values })),
  ...page.functions.map((one) => ({ name: `${titleOf(one.task)} (function, ${one.ranking})`, values: one.values })),
];

const rankOf = (one) => { one.ranks ??= new Map(one.order.map((place, rank) => [place, rank + 1])); return one.ranks; };

function patternLines(place) {
  const found = page.patterns.names.map((name, number) => [name, at(page.patterns.values[number], place)]).filter(([, value]) => known(value));
  return h("dl", {}, found.map(([name, value]) => h("div", { class: Math.abs(value) >= 0.4 ? "strong" : null }, h("dt", {}, name), h("dd", {}, fixed(value, 2)))));
}

function card(place) {
  const name = nameAt(place, headsOf);
  const weight = weightOf(0, name);
  const tasks = page.scores.map((one) => h("li", {}, `${titleOf(one.task)}, ${one.method}: ${signed(at(one.values, place))}, rank ${rankOf(one).get(place)}`));
  const roles = page.roles.map((one) => h("li", {}, `${titleOf(one.task)}: ${at(one.role, place) >= 0 ? page.role_names[at(one.role, place)] : "no role"}`));
  const functions = page.functions.filter((one) => rankOf(one).get(place) <= Math.ceil(places.length / 10))
    .map((one) => h("li", {}, `${titleOf(one.task)} (${one.ranking}): rank ${rankOf(one).get(place)}`));
  const prompts = page.scores.filter((one) => one.best).map((one) => one.best[place].map((prompt, number) =>
    h("li", {}, h("q", {}, one.texts[prompt]), ` ${titleOf(one.task)}, ${signed(one.best_score[place][number])}`)));
  const part = (title, items) => (items.flat().length ? [h("h4", {}, title), h("ul", {}, items)] : null);
  return h("article", { class: "card", id: name },
    h("h3", {}, name),
    weight ? h("img", { class: "thumb", alt: `Attention of ${name} on random tokens said twice`, src: picture(page.attention.tokens[0].length, weight) }) : null,
    patternLines(place), part("Tasks", tasks), part("Roles", roles), part("Functions, among the best tenth", functions), part("Prompts on which it matters most", prompts));
}

const state = choices({ by: MEASURES[0].name, head: null });
const measure = () => MEASURES.find((one) => one.name === state.get("by"));
const cards = places.map(card);
const list = h("div", { class: "cards" });
const mapBox = h("div");
let map = null;
state.watch("by", () => {
  const { name, values, unsigned } = measure();
  map = headMap({ title: name, values, kind: unsigned ? "sequential" : "diverging", scale: unsigned ? "Share of attention" : "Score",
    describe: (place) => [nameAt(place, headsOf), `${name} ${signed(at(values, place))}`], onPick: (head) => state.set({ head }) });
  mapBox.replaceChildren(map.element);
  const size = (place) => (known(at(values, place)) ? (unsigned ? at(values, place) : Math.abs(at(values, place))) : -1);
  list.replaceChildren(...places.toSorted((a, b) => size(b) - size(a)).map((place) => cards[place]));
});
state.watch("head", ({ head }) => {
  map.point(head);
  if (head) document.getElementById(head)?.scrollIntoView({ block: "center" });
  for (const one of cards) one.classList.toggle("chosen", one.id === head);
});
const pick = h("select", { id: "by" }, MEASURES.map((one) => h("option", {}, one.name)));
on(pick, "change", () => state.set({ by: pick.value }));
const search = h("input", { type: "search", placeholder: "L9.H6, or words of a card", "aria-label": "Find heads" });
on(search, "input", () => {
  const words = search.value.trim().toLowerCase();
  for (const one of cards) one.hidden = words && !(one.id.toLowerCase() === words || one.textContent.toLowerCase().includes(words));
});
const missing = page.missing.length ? h("div", { class: "notes" }, h("strong", {}, "Not known yet"),
  h("ul", {}, page.missing.map((one) => h("li", {}, `${one.what}: `, h("code", {}, one.command))))) : null;
const damaged = page.notes.length ? h("div", { class: "notes" }, h("strong", {}, "Could not be read"), h("ul", {}, page.notes.map((note) => h("li", {}, note)))) : null;
document.getElementById("top").append(h("div", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }, "◉"), h("h1", {}, page.title)));
document.getElementById("content").replaceChildren(
  h("p", { class: "lead" }, `${plural(places.length, "head")}. Patterns on ${page.patterns.on}${page.read.length ? `; scores from ${listed(page.read)}` : ""}. A card shows a head's attention, how much of each pattern it has, and what runs say of it.`),
  missing, damaged,
  h("div", { class: "controls" }, h("label", { class: "pick" }, "Colour and order by ", pick), h("label", { class: "pick" }, "Find ", search)),
  h("figure", {}, mapBox), list,
  h("footer", {}, "Made by Headscope from a model and run folders. Nothing on this page is fetched from anywhere."));
document.documentElement.dataset.ready = "yes";
