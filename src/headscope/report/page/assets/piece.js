// One record by itself, as a notebook shows it: a head map, a map of roles, a curve or a circuit.

const PIECES = {
  scores(one) {
    const heads = one.values[0].length;
    const ranks = new Map(one.order.map((place, rank) => [place, rank + 1]));
    const describe = (place) => [nameAt(place, heads), `score ${signed(one.values.flat()[place], 4)}`, `rank ${ranks.get(place)} of ${ranks.size}`];
    const map = headMap({ title: one.title, values: one.values, describe, kind: one.kind, limit: one.limit, scale: one.scale, onPick: (head) => map.point(head) });
    if (one.members) map.members(new Map(one.members.map((place) => [place, 1])));
    return map.element;
  },
  roles(one) {
    const state = choices({ head: null });
    const map = roleMap(one, state);
    state.watch("head", ({ head }) => map.point(head));
    return h("div", {}, map.element, roleLegend());
  },
  curve(one) {
    const range = thin(one.mid.filter(known));
    return curvePanel({ title: `${titleOf(one.task)}: ${one.label}`, series: [{ ...one, colour: "c0" }], log: one.log, xLabel: `Number of ${one.what} kept`,
      yLabel: "Explained effect", yRange: [Math.max(Math.min(0, ...range), -0.5) - 0.05, Math.min(Math.max(1, ...range), 2) + 0.12],
      yTicks: [0, 0.5, 1], threshold: one.threshold }).element;
  },
  graph(one) {
    const steps = Array.from(one.score, (_, place) => place + 1);
    const state = choices({ k: steps[Math.min(steps.length, one.start) - 1], floor: 0, connected: false, node: null });
    return h("div", {}, steps.length > 1 ? slider("Edges", steps, state, "shown") : null, circuitGraph(one, state));
  },
};

document.getElementById("top").hidden = true;
document.getElementById("content").replaceChildren(h("figure", {}, PIECES[page.piece](page.record)));
document.documentElement.dataset.ready = "yes";
