// The section of an edge study: curves on a log axis, the slider over k, circuits, and the edges as a table.

function circuits(run, state) {
  const box = h("div", { class: "side-by-side" });
  state.watch("task method", ({ task, method }) => {
    const graphs = run.graphs.filter((graph) => graph.task === task && graph.method === method);
    const scope = choices({ k: state.get("k"), floor: state.get("floor"), connected: state.get("connected"), node: state.get("node") });
    // A graph watches choices of its own, which end with it.
    state.get("scope").pass = (changes) => scope.set(changes);
    scope.watch("node", ({ node }) => state.set({ node }));
    box.replaceChildren(...graphs.map((graph) => circuitGraph(graph, scope)));
  });
  state.watch("k floor connected node", ({ k, floor, connected, node }) => state.get("scope").pass({ k, floor, connected, node }));
  const floor = h("input", { type: "range", min: 0, max: 60, step: 1, value: 0, "aria-label": "Hide edges below this share of the largest score, in percent" });
  const said = h("output", {}, "0 %");
  on(floor, "input", () => { said.textContent = `${floor.value} %`; state.set({ floor: Number(floor.value) }); });
  const only = h("input", { type: "checkbox" });
  on(only, "change", () => state.set({ connected: only.checked }));
  const tools = h("div", { class: "tools" }, h("label", {}, "Hide edges below ", floor, said, " of the largest score"),
    h("label", {}, only, " Only edges on a path from embedding to logits"), button("Let go of the component", () => state.set({ node: null }), { class: "small" }));
  return figureOf("Circuit of the k best edges", { run, names: namesOf(run, "circuit-"), wide: unique(run.graphs.map((one) => one.model)).length > 1,
    note: "Layers go upward, a column per head number, MLPs and both ends to the right. Orange helps, purple hinders, width follows the root of the score. Click a component (or use the arrow keys) to see the paths through it." }, tools, box);
}

function edgeTable(run, state) {
  const table = tableOf({ caption: "Edges by rank", rows: [], search: true, page: 25, sort: { key: "rank", down: false }, onPick: (row) => state.set({ node: row.from.startsWith("L") ? row.from : row.to }),
    rowClass: (row) => (row.rank <= state.get("k") ? "in" : ""),
    columns: [{ key: "rank", title: "Rank", number: true, rising: true }, { key: "edge", title: "Edge" }, { key: "model", title: "Model" },
      { key: "score", title: "Score", number: true, show: (value) => signed(value, 5) }] });
  const note = h("figcaption");
  state.watch("task method", ({ task, method }) => {
    const graphs = run.graphs.filter((graph) => graph.task === task && graph.method === method);
    table.update(graphs.flatMap((graph) => edgesOf(graph).map((edge) => ({ ...edge, model: graph.model }))));
    note.textContent = graphs.map((graph) => `${graph.model}: the first ${count(graph.score.length)} of ${count(graph.total)} edges by ${graph.signed ? "signed" : "absolute"} score${graph.choice === "greedy" ? ", grown from the logits" : ""}.`).join(" ");
  });
  state.watch("k", () => table.mark());
  return h("figure", {}, h("div", { class: "figure-head" }, h("h3", {}, "Edges")), table.element, note);
}

function edgeSection(run) {
  const tasks = unique([...run.curves, ...run.graphs].map((one) => one.task));
  if (tasks.length === 0) return h("p", { class: "empty" }, "Nothing is finished yet.");
  const methods = unique(run.graphs.map((one) => one.method));
  const steps = stepsOf(run.curves, true);
  const first = run.curves.find((curve) => curve.task === tasks[0]);
  const state = choices({ task: tasks[0], method: methods[0], steps, k: stepAt(first, steps), floor: 0, connected: false, node: null, scope: { pass() {} } },
    run.folder, { task: tasks, method: methods, k: steps });
  const facts = (run.tables.circuits || []).map(({ low, high, ...row }) => ({ ...row, explained: known(row.explained) ? interval(row.explained, low, high) : "–" }));
  return [
    h("div", { class: "controls" }, choice("Task", tasks, state, "task", titleOf), choice("Method", methods, state, "method"), slider("Edges", steps, state)),
    h("div", { class: "grid" }, curveFigure(run, state, unique(run.curves.map((curve) => curve.task)), { what: "edges", log: true }),
      readout("Edges", state, (task) => seriesOf(run, task), run.tables.summary || [], run.threshold, tasks.length > 1),
      run.graphs.length ? circuits(run, state) : null, run.graphs.length ? edgeTable(run, state) : null,
      h("div", {}, comparison(run), facts.length ? figureOf("Circuits at the threshold, run by themselves", {}, plainTable("Circuits", facts)) : null)),
  ];
}
