// The overview: published numbers beside measured ones, the runs, the models, and how well they do their tasks.

const KINDS = { heads: "Heads", edges: "Edges", roles: "Roles", functions: "Functions", "sparsify-report": "Sparse attention" };
const modelsOf = (run) => Object.keys(run.manifest.models || {});
const shortOf = (name) => String(name).replace(/\/+$/, "").split("/").at(-1);
const taskWords = (run) => (Array.isArray(run.manifest.settings.tasks) ? run.manifest.settings.tasks : []).map((task) => titleOf(shortOf(task).replace(/\.jsonl?$/, "")));

function headline(run) {
  const models = modelsOf(run).map(shortOf);
  const about = [listed(models), listed(taskWords(run))].filter(Boolean).join(" on ");
  return { kind: KINDS[run.command] || run.command || "Unreadable run", about };
}

function duration(manifest) {
  const seconds = (Date.parse(manifest.finished) - Date.parse(manifest.started)) / 1000;
  if (!known(seconds)) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function published(extra) {
  if (!extra) return null;
  const place = new Map(extra.figures.map((figure) => [figure.id, figure]));
  const rows = extra.numbers.map((row) => ({ ...row, title: place.get(row.figure)?.title ?? "" }));
  const link = (value) => {
    const figure = place.get(value);
    return figure && known(figure.place) ? h("a", { href: `#run-${figure.place}` }, String(value)) : some(value);
  };
  const columns = [
    { key: "figure", title: "Figure", show: link }, { key: "title", title: "What it shows" }, { key: "what", title: "Number" },
    { key: "published", title: "Published" }, { key: "measured", title: "Measured here" }, { key: "setting", title: "Setting" },
  ];
  const time = known(extra.seconds) ? ` The whole reproduction took ${extra.seconds < 5400 ? `${Math.round(extra.seconds / 60)} minutes` : `${(extra.seconds / 3600).toFixed(1)} hours`}.` : "";
  const shown = extra.figures.filter((figure) => figure.picture).map((figure) => h("figure", { class: "wide published" },
    h("div", { class: "figure-head" }, h("h3", {}, link(figure.id), ` ${figure.title || ""}`)), h("img", { class: "picture", src: figure.picture, alt: figure.title || figure.id }),
    h("figcaption", {}, figure.claim ? h("p", {}, h("strong", {}, "Published: "), figure.claim) : null, figure.measured ? h("p", {}, h("strong", {}, "Here: "), figure.measured) : null)));
  return h("section", { id: "published", class: "run" }, h("h2", {}, "The published figures, drawn here"), ...shown, h("h2", {}, "Published numbers beside measured ones"),
    h("p", { class: "lead" }, `${plural(rows.length, "number")} in ${plural(extra.figures.length, "figure")}. Published ones are of the papers' models; measured ones are of the models and settings named in their rows.${time}`),
    h("div", { class: "card" }, tableOf({ caption: "Published and measured numbers", columns, rows, page: 200 }).element));
}

function runTable() {
  const rows = page.runs.map((run, place) => ({
    place, name: run.name, kind: headline(run).kind, about: headline(run).about, state: run.state,
    started: (run.manifest.started || "").replace("T", " ").replace(/\+00:00$/, " UTC"), took: duration(run.manifest), notes: run.notes.length,
  }));
  const columns = [
    { key: "name", title: "Run", show: (name, row) => h("a", { href: `#run-${row.place}` }, name) }, { key: "kind", title: "Study" },
    { key: "about", title: "Models and tasks" },
    { key: "state", title: "State", show: (state) => h("span", { class: `state ${state.replace(" ", "-")}` }, state) },
    { key: "started", title: "Started" }, { key: "took", title: "Took" },
    { key: "notes", title: "Notes", number: true, show: (number) => (number ? h("strong", { class: "warn" }, String(number)) : "none") },
  ];
  return tableOf({ caption: "Runs", columns, rows }).element;
}

function modelTable() {
  const found = new Map();
  for (const run of page.runs) for (const [name, facts] of Object.entries(run.manifest.models || {})) found.set(`${name} ${facts?.sha256}`, { name, ...facts });
  if (found.size === 0) return null;
  const rows = [...found.values()].map((facts) => ({ ...facts, size: facts.layers ? `${facts.layers} × ${facts.heads}` : "" }));
  const columns = [
    { key: "name", title: "Model", show: shortOf }, { key: "architecture", title: "Architecture" }, { key: "size", title: "Layers × heads" },
    { key: "dtype", title: "Numbers" }, { key: "kind", title: "From" },
    { key: "sha256", title: "SHA-256 of the weights", show: (sum) => (sum ? h("span", { class: "sum" }, h("code", { title: sum }, String(sum).slice(0, 16)), copyButton(String(sum))) : "–") },
  ];
  return tableOf({ caption: "Models", columns, rows }).element;
}

function accuracyTable() {
  const found = new Map();
  for (const run of page.runs) for (const check of run.checks) found.set(`${run.command === "roles"} ${check.model} ${check.task} ${check.n}`, check);
  if (found.size === 0) return null;
  const rows = [...found.values()];
  const bar = (value) => h("span", { class: "bar" }, svg("svg", { viewBox: "0 0 60 8", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 60, height: 8, rx: 2 }), svg("rect", { class: "amount", width: 60 * (value || 0), height: 8, rx: 2 })), fixed(value));
  const columns = [
    { key: "model", title: "Model" }, { key: "task", title: "Task", show: titleOf }, { key: "n", title: "Prompts", number: true },
    { key: "accuracy", title: "Accuracy", number: true, show: bar }, { key: "metric_name", title: "Metric" },
    { key: "metric", title: "Clean", number: true, show: (value) => fixed(value) }, { key: "corrupt_metric", title: "Corrupt", number: true, show: (value) => fixed(value) },
    { key: "usable", title: "Does the task", show: (yes) => (yes ? "yes" : h("strong", { class: "warn" }, "no")) },
  ];
  return tableOf({ caption: "How well each model does each task", columns, rows, page: 60 }).element;
}

function versions() {
  const all = unique(page.runs.map((run) => JSON.stringify(run.manifest.versions || {})).filter((text) => text !== "{}"));
  const words = all.map((text) => Object.entries(JSON.parse(text)).map(([name, number]) => `${name} ${number}`).join(", "));
  return words.length ? h("p", { class: "small-words" }, `Made with ${words.join("; ")}.`) : null;
}

function overview() {
  return h("section", { id: "overview", class: "run" }, h("h2", {}, "Overview"), h("div", { class: "card" }, runTable()),
    h("div", { class: "card" }, modelTable(), versions()), h("div", { class: "card" }, accuracyTable()));
}
