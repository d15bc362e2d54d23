// The section of a head study: curves, the slider over k, head maps, attention, and the heads as a table.

const COLOURS = ["c0", "c1", "c2", "c3", "c4", "c5"];
const DASHES = { prompt: "dash" };

// Colours follow models and methods; a ranking per prompt is dashed.
function seriesOf(run, task) {
  const kinds = unique(run.curves.map((curve) => `${curve.model}\u0000${curve.method}`));
  return run.curves.filter((curve) => curve.task === task).map((curve) => ({
    curve, ...curve, colour: COLOURS[kinds.indexOf(`${curve.model}\u0000${curve.method}`) % COLOURS.length], dash: DASHES[curve.ranking] || "",
  }));
}

function bandsOf(run, task) {
  return (run.bands || []).filter((band) => band.task === task).slice(0, 1)
    .map((band) => ({ ...band, curve: band, label: `${band.model}, random`, colour: "grey", dash: "dots" }));
}

// Digits that say something, however small a multiplier is.
const timesOf = (value, digits) => (value >= 0.1 ? value.toFixed(digits) : String(Number(value.toPrecision(2))));
const multipliersOf = (run) => run.tables.multipliers || [];

// The dashed line between two curves at the threshold: between two series only, or between the models' first ones.
function segmentOf(run, task) {
  const rows = multipliersOf(run).filter((row) => row.task === task && known(row.multiplier) && known(row.first_k) && known(row.second_k));
  // (Where several rankings are compared, the one of the first curve is drawn.)
  const first = run.curves.find((curve) => curve.task === task);
  const second = run.curves.find((curve) => first && curve.task === task && curve.model !== first.model && curve.method === first.method && curve.ranking === first.ranking);
  const row = rows.length === 1 ? rows[0] : rows.find((one) => second && one.against === second.label && (!one.first || one.first === first.label));
  return row ? { from: row.first_k, to: row.second_k, text: `${timesOf(row.multiplier, 1)}×` } : null;
}

function curveFigure(run, state, tasks, { what, log }) {
  const panels = tasks.map((task) => {
    const series = [...seriesOf(run, task), ...bandsOf(run, task)];
    const values = thin(series.flatMap((one) => one.mid).filter(known));
    const yRange = [Math.max(Math.min(0, ...values), -0.5) - 0.05, Math.min(Math.max(1, ...values), 2) + 0.12];
    const panel = curvePanel({ title: titleOf(task), series, log, xLabel: `Number of ${what} kept`, yLabel: "Explained effect", yRange,
      yTicks: [0, 0.5, 1], threshold: run.threshold, segment: segmentOf(run, task),
      onPick: (k) => state.set({ task, k: state.get("steps").reduce((best, one) => (Math.abs(one - k) < Math.abs(best - k) ? one : best)) }) });
    return { task, series, ...panel };
  });
  state.watch("k task", ({ k, task }) => panels.forEach((panel) => {
    panel.mark(k);
    panel.element.classList.toggle("chosen", panels.length > 1 && panel.task === task);
  }));
  const legend = unique(panels.flatMap((panel) => panel.series).map((one) => JSON.stringify([one.label, one.colour, one.dash])));
  const words = legend.map((text) => JSON.parse(text)).map(([label, colour, dash]) => ({ label, colour, dash }));
  const bars = run.bands?.length ? " Grey: the lowest to the highest of random rankings." : "";
  return figureOf(`Explained effect against ${what} kept`, { run, names: namesOf(run, "curves"), wide: tasks.length > 1,
    note: `Bands are 95 % bootstrap intervals over prompts; the dotted line is the threshold, ${run.threshold}.${bars} Hover to read values, click to set k.` },
  legendOf(words), h("div", { class: "panels" }, panels.map((panel) => panel.element)));
}

// Heads that a curve keeps at k, with the share of prompts that keep them.
function membersAt(curve, k) {
  if (!curve) return new Map();
  if (curve.order) return new Map(curve.order.slice(0, k).map((place) => [place, 1]));
  if (!curve.shares) return new Map();
  curve.bytes ??= bytesOf(curve.shares);
  const size = curve.bytes.length / curve.k.length;
  const row = placeOf(curve.k, k);
  const found = new Map();
  for (let place = 0; row >= 0 && place < size; place++) {
    const share = curve.bytes[row * size + place];
    if (share) found.set(place, Math.round((share / 255) * 1000) / 1000);
  }
  return found;
}

function headMaps(run, state) {
  const box = h("div", { class: "side-by-side" });
  let maps = [];
  const inside = () => maps.forEach(({ map, curve }) => map.members(membersAt(curve(), state.get("k"))));
  state.watch("task method", ({ task, method }) => {
    const found = run.scores.filter((one) => one.task === task && one.method === method);
    maps = found.map((scores) => {
      const places = new Map(scores.order.map((place, rank) => [place, rank + 1]));
      const curve = () => run.curves.find((one) => one.model === scores.model && one.task === task && one.method === method && (one.ranking || "task") === state.get("ranking"));
      const describe = (place) => {
        const heads = scores.values[0].length;
        const share = membersAt(curve(), state.get("k")).get(place) || 0;
        const word = share === 1 ? "in" : share ? `in for ${Math.round(share * 100)} % of prompts` : "out";
        return [nameAt(place, heads), `score ${signed(scores.values[Math.floor(place / heads)][place % heads])}`, `rank ${places.get(place)} of ${places.size}`, `${word} at k ${state.get("k")}`];
      };
      const map = headMap({ title: scores.model, values: scores.values, describe, onPick: (head) => state.set({ head }) });
      return { map, curve };
    });
    box.replaceChildren(...maps.map(({ map }) => map.element));
    inside();
    maps.forEach(({ map }) => map.point(state.get("head")));
  });
  state.watch("k ranking", inside);
  state.watch("head k ranking", ({ head }) => maps.forEach(({ map }) => map.point(head)));
  return figureOf("Head maps", { run, names: namesOf(run, "heads-"), wide: unique(run.scores.map((one) => one.model)).length > 1,
    note: "A cell is a head; orange helps, purple hinders. Framed heads are kept at the chosen k (where each prompt has a ranking of its own, the stronger the frame the more prompts keep it). Click a head, or use the arrow keys." }, box);
}

function headTable(run, state) {
  const at = (row) => membersAt(run.curves.find((one) => one.model === row.model && one.task === row.task && one.method === row.method && (one.ranking || "task") === state.get("ranking")), state.get("k"));
  let inside = new Map();
  const rowsOf = (task, method) => run.scores.filter((one) => one.task === task && one.method === method).flatMap((scores) =>
    scores.order.map((place, rank) => ({ model: scores.model, task, method, place, rank: rank + 1,
      head: nameAt(place, scores.values[0].length), score: scores.values.flat()[place] })));
  const table = tableOf({ caption: "Heads by score", rows: [], search: true, page: 25, sort: { key: "rank", down: false }, onPick: (row) => state.set({ head: row.head }),
    rowClass: (row) => [inside.get(row.model)?.has(row.place) ? "in" : "", row.head === state.get("head") ? "chosen" : ""].join(" ").trim(),
    columns: [{ key: "rank", title: "Rank", number: true, rising: true }, { key: "head", title: "Head" }, { key: "model", title: "Model" },
      { key: "score", title: "Score", number: true, show: (value) => signed(value, 4) }] });
  let rows = [];
  const mark = () => {
    inside = new Map(unique(rows.map((row) => row.model)).map((model) => [model, at(rows.find((row) => row.model === model))]));
    table.mark();
  };
  state.watch("task method", ({ task, method }) => { rows = rowsOf(task, method); table.update(rows); mark(); });
  state.watch("k ranking head", mark);
  return figureOf("Heads", { note: "Rows with a bar are kept at the chosen k. Click a row to see the head." }, table.element);
}

function headSection(run) {
  const tasks = unique([...run.curves, ...run.scores].map((one) => one.task));
  if (tasks.length === 0) return h("p", { class: "empty" }, "Nothing is finished yet.");
  const methods = unique(run.scores.map((one) => one.method));
  const rankings = unique(run.curves.map((curve) => curve.ranking || "task"));
  const steps = stepsOf(run.curves, false);
  const first = run.curves.find((curve) => curve.task === tasks[0]);
  const best = run.scores.find((one) => one.task === tasks[0]);
  const state = choices({ task: tasks[0], method: methods[0], ranking: rankings[0] || "task", steps, k: stepAt(first, steps),
    head: best ? nameAt(best.order[0], best.values[0].length) : null, prompt: 0 },
  run.folder, { task: tasks, method: methods, ranking: rankings, k: steps, head: best ? best.values.flat().map((_, place) => nameAt(place, best.values[0].length)) : [], prompt: [0, 1] });
  const words = { task: "per task", prompt: "per prompt" };
  return [
    h("div", { class: "controls" }, choice("Task", tasks, state, "task", titleOf), choice("Method", methods, state, "method"),
      choice("Ranking", rankings, state, "ranking", (name) => words[name] || name), slider("Heads", steps, state)),
    h("div", { class: "grid" },
      curveFigure(run, state, unique(run.curves.map((curve) => curve.task)), { what: "heads", log: false }),
      readout("Heads", state, (task) => [...seriesOf(run, task), ...bandsOf(run, task)], run.tables.summary || [], run.threshold, tasks.length > 1),
      run.scores.length ? headMaps(run, state) : null, attentionFigure(run, state), headTable(run, state),
      comparison(run)),
  ];
}

function comparison(run) {
  const rows = multipliersOf(run).map((row) => ({ ...row, needs: `${fixed(row.first_k, 1)} / ${fixed(row.second_k, 1)}` }));
  if (rows.length === 0) return null;
  const ends = (row) => (known(row.low) || known(row.high) ? ` [${fixed(row.low, 2)}, ${fixed(row.high, 2)}]` : "");
  const columns = [
    { key: "task", title: "Task", show: titleOf }, ...(rows[0].first ? [{ key: "first", title: "First" }] : []), { key: "against", title: "Against" },
    { key: "multiplier", title: "Multiplier", number: true, show: (value, row) => (known(value) ? `${timesOf(value, 2)}×${ends(row)}` : "not reached") },
    { key: "needs", title: "Both need", number: true }, ...(rows.some((row) => row.note) ? [{ key: "note", title: "Note", show: (note) => note || "" }] : []),
  ];
  return figureOf("Multipliers", { note: "How many times more the first series needs to reach the threshold than the one it is set against, with its 95 % interval." },
    tableOf({ caption: "Multipliers", columns, rows, page: 25 }).element);
}
