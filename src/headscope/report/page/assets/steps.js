// The slider over k, and what a curve says there.

// Every k up to some hundred; beyond, the measured ones and some between, closer together where they are small.
function stepsOf(curves, log) {
  const total = Math.max(1, ...curves.map((curve) => curve.total || curve.k.at(-1) || 1));
  const steps = new Set(curves.flatMap((curve) => (curve.k.length <= 2000 ? curve.k : [curve.k.at(-1)])));
  if (total <= 600) for (let k = 0; k <= total; k++) steps.add(k);
  else for (let at = 0; at <= 240; at++) steps.add(Math.round(total ** (at / 240)));
  return [...steps].filter((k) => k >= (log ? 1 : 0) && k <= total).sort((a, b) => a - b);
}

function slider(what, steps, state, verb = "kept") {
  const range = h("input", { type: "range", min: 0, max: steps.length - 1, step: 1, "aria-label": `${what} ${verb}` });
  const number = h("input", { type: "number", min: steps[0], max: steps.at(-1), "aria-label": `${what} ${verb}, as a number` });
  on(range, "input", () => state.set({ k: steps[Number(range.value)] }));
  on(number, "change", () => {
    const asked = Number(number.value);
    state.set({ k: steps.reduce((best, k) => (Math.abs(k - asked) < Math.abs(best - asked) ? k : best)) });
    number.value = state.get("k");
  });
  state.watch("k", ({ k }) => {
    range.value = steps.indexOf(k);
    range.setAttribute("aria-valuetext", `${count(k)} ${what.toLowerCase()} ${verb}`);
    number.value = k;
  });
  return h("div", { class: "slider" }, h("span", { class: "label" }, `${what} ${verb}, k`), range, number,
    h("span", { class: "of" }, `of ${count(steps.at(-1))}`));
}

// The last place whose k is not above the one asked for.
function placeOf(ks, k) {
  let [low, high] = [0, ks.length - 1];
  if (ks.length === 0 || ks[0] > k) return -1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (ks[middle] <= k) low = middle; else high = middle - 1;
  }
  return low;
}

// Explained effect at k: measured, or on the line between the two measured points around it.
function effectAt(curve, k) {
  const at = placeOf(curve.k, k);
  if (at < 0) return { measured: false, mid: null, low: null, high: null };
  // (Equal prompts have no interval.)
  const of = (name, place = at) => curve[name]?.[place] ?? null;
  if (curve.k[at] === k || at === curve.k.length - 1)
    return { measured: curve.k[at] === k, mid: of("mid"), low: of("low"), high: of("high") };
  const share = (k - curve.k[at]) / (curve.k[at + 1] - curve.k[at]);
  const between = (name) =>
    known(of(name)) && known(of(name, at + 1)) ? of(name) + share * (of(name, at + 1) - of(name)) : null;
  return { measured: false, mid: between("mid"), low: between("low"), high: between("high") };
}

// The first step at which a curve has reached the threshold; one in the first quarter where it never does.
function stepAt(curve, steps) {
  if (!known(curve?.needs)) return steps[Math.min(steps.length - 1, Math.round(steps.length / 4))];
  return steps.find((step) => step >= curve.needs) ?? steps.at(-1);
}

// A row per series: its explained effect at the chosen k.
function readout(what, state, series, summary, threshold, wide) {
  const body = h("tbody", { "aria-live": "polite" });
  state.watch("k task", ({ k, task }) => {
    body.replaceChildren(...series(task).map(({ curve, colour, dash }) => {
      const found = effectAt(curve, k);
      const row = summary.find((one) => one.model === curve.model && one.task === task && one.method === curve.method
        && (one.ranking ?? "task") === (curve.ranking ?? "task"));
      const need = row && known(row.k_at_threshold)
        ? `${fixed(row.k_at_threshold, 1)} [${fixed(row.k_low, 1)}, ${fixed(row.k_high, 1)}]` : row ? "not reached" : "–";
      return h("tr", {}, h("td", {}, h("i", { class: `key ${colour} ${dash}` }), curve.label),
        h("td", { class: "number strong" }, `${found.measured || found.mid === null ? "" : "≈ "}${fixed(found.mid)}`),
        h("td", { class: "number" }, known(found.low) ? `[${fixed(found.low)}, ${fixed(found.high)}]` : "–"),
        h("td", { class: "number" }, need), h("td", { class: "number" }, count(curve.total)));
    }));
  });
  const columns = ["Series", "Explained effect at k", "95 % interval", `${what} for ${threshold}`, "of"];
  return figureOf("At the chosen k", { wide, note: "≈ marks a value on the line between two measured points." }, h("div", { class: "scroll" }, h("table", { class: "readout" },
    h("thead", {}, h("tr", {}, columns.map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))), body)));
}
