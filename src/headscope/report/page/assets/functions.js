// The section of a function study: masking a function's heads against masking others, and where those heads are.

function functionSection(run) {
  const { base = [], sweep = [], cross, steered, rankings: found, agreement } = run.tables;
  const rankings = unique(run.scores.map((one) => one.ranking).concat(sweep.map((row) => row.ranking)));
  const functions = unique(run.scores.map((one) => one.task).concat(base.map((row) => row.function)));
  if (rankings.length === 0) return h("p", { class: "empty" }, "Nothing is finished yet.");
  const ks = unique(sweep.map((row) => row.k)).sort((a, b) => a - b);
  const largest = run.scores[0] ? run.scores[0].values.flat().length : 1;
  const steps = unique([0, ...Array.from({ length: Math.min(largest, 600) }, (_, at) => at + 1), ...ks]).sort((a, b) => a - b);
  const state = choices({ ranking: rankings[0], function: functions[0], k: ks[0] ?? 1, head: null }, run.folder, { ranking: rankings, k: steps });
  const panels = h("div", { class: "panels" });
  let drawn = [];
  state.watch("ranking", ({ ranking }) => {
    drawn = functions.map((name) => {
      const rows = sweep.filter((row) => row.ranking === ranking && row.function === name);
      const reference = base.find((row) => row.function === name) || {};
      const k = rows.map((row) => row.k);
      const shown = ["accuracy", ...(run.second ? [run.second] : [])];
      const lines = shown.flatMap((score, at) => [
        { label: `K best, ${score}`, colour: `c${at ? 2 : 0}`, k, mid: rows.map((row) => row[`top_${score}`]), dots: true },
        { label: `K random, ${score}`, colour: `c${at ? 2 : 0}`, dash: "dash", k, mid: rows.map((row) => row[`random_${score}`]), low: rows.map((row) => row[`random_${score}_low`]), high: rows.map((row) => row[`random_${score}_high`]), dots: true }]);
      const levels = shown.map((score, at) => ({ value: reference[score], colour: `c${at ? 2 : 0}` }));
      const values = thin([...lines.flatMap((one) => one.mid), 0, 1].filter(known));
      return { lines, ...curvePanel({ title: titleOf(name), series: lines, log: true, xTicks: ks, xLabel: "Masked heads", yLabel: "Score", yRange: [Math.min(...values) - 0.04, Math.max(...values) + 0.06], yTicks: [0, 0.5, 1], levels }) };
    });
    panels.replaceChildren(legendOf(drawn[0]?.lines || []), ...drawn.map((panel) => panel.element));
    drawn.forEach((panel) => panel.mark(state.get("k")));
  });
  state.watch("k", ({ k }) => drawn.forEach((panel) => panel.mark(k)));
  const box = h("div", { class: "side-by-side" });
  let maps = [];
  const inside = () => maps.forEach(({ map, order }) => map.members(new Map(order.slice(0, state.get("k")).map((place) => [place, 1]))));
  state.watch("ranking", ({ ranking }) => {
    maps = run.scores.filter((one) => one.ranking === ranking).map((scores) => {
      const { order } = scores;
      const heads = scores.values[0].length;
      const describe = (place) => [headName(Math.floor(place / heads), place % heads), `score ${signed(scores.values.flat()[place])}`, `rank ${order.indexOf(place) + 1} of ${order.length}`];
      return { order, map: headMap({ title: titleOf(scores.task), values: scores.values, describe, onPick: (head) => state.set({ head }) }) };
    });
    box.replaceChildren(...maps.map(({ map }) => map.element));
    inside();
    maps.forEach(({ map }) => map.point(state.get("head")));
  });
  state.watch("k", inside);
  state.watch("head", ({ head }) => maps.forEach(({ map }) => map.point(head)));
  return [
    h("div", { class: "controls" }, choice("Ranking", rankings, state, "ranking"), slider("Heads", steps, state, "masked")),
    run.comet ? h("p", { class: "small-words" }, run.comet) : null,
    h("div", { class: "grid" },
      sweep.length ? figureOf("Answers with the K best heads masked, against K at random", { run, names: namesOf(run, "functions-"), wide: true, note: "Bands from the lowest draw to the highest; the dotted line is the score with no heads masked." }, panels) : null,
      run.scores.length ? figureOf("Heads of each function", { wide: true, note: "Framed heads are the k best of the ranking." }, box) : null,
      h("div", { class: "wide tables" }, plainTable("Answers with every head in place", base), plainTable("K best against K random heads masked", sweep),
        plainTable("One function's heads masked, another's questions asked", cross), plainTable("Heads steered towards correct answers", steered),
        plainTable("Heads and elbow of each function", found), plainTable("Agreement of rankings", agreement))),
  ];
}
