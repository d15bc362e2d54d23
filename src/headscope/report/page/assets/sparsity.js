// The section that compares a sparse model with its dense origin.

function sparsitySection(run) {
  const found = run.found;
  const rates = run.scores[0];
  const tasks = unique((run.attention || []).map((one) => one.task));
  const state = choices({ task: tasks[0] ?? "", head: rates ? nameAt(rates.order[0], rates.values[0].length) : null, prompt: 0 });
  const row = (name, of, show = fixed) => ({ name, dense: show(of.dense), sparse: show(of.sparse), random: show(of["random gates"]) });
  const percent = (value) => (known(value) ? `${(100 * value).toFixed(2)} %` : "–");
  const lost = found["ce above dense"];
  const rows = found.ce ? [
    row("Open attention edges", { dense: 1, sparse: found.connectivity, "random gates": found["random connectivity"] }, percent),
    row("Cross-entropy", found.ce, (value) => fixed(value, 4)),
    ...(lost ? [{ name: "Cross-entropy above the dense model's", dense: "", sparse: `${fixed(lost.mean, 4)} [${fixed(lost.low, 4)}, ${fixed(lost.high, 4)}]`, random: "" }] : []),
    row("Divergence from the dense model", { dense: 0, ...found.divergence }, (value) => fixed(value, 4)),
    ...Object.entries(found.accuracy || {}).map(([task, of]) => row(`Accuracy on ${titleOf(task)}`, of)),
  ] : [];
  const columns = [{ key: "name", title: "What" }, { key: "dense", title: found.dense || "dense" }, { key: "sparse", title: found.sparse || "sparse" }, { key: "random", title: "random gates" }];
  let map = null;
  if (rates) {
    const describe = (place) => [nameAt(place, rates.values[0].length), `${percent(rates.values.flat()[place])} of its edges are open`];
    map = headMap({ title: rates.model, values: rates.values, kind: "sequential", scale: "Share of open edges", describe, onPick: (head) => state.set({ head }) });
    state.watch("head", ({ head }) => map.point(head));
  }
  const never = (found["never open"] || []).length;
  return h("div", { class: "grid" },
    rows.length ? figureOf("Dense against sparse", { note: `${plural(never, "head")} never open${never === 1 ? "s" : ""}. Random gates open each head's edges at random, at the rate the head has.` }, tableOf({ caption: "Dense against sparse", columns, rows }).element) : null,
    map ? figureOf("Attention edges that are open", { run, names: ["connectivity"] }, map.element) : null,
    attentionFigure(run, state));
}
