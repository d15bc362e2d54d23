// The section of a role study: what each head does for a task, and what taking heads away does.

const ROLES = ["facilitation", "irrelevance", "interference"];

function roleMap(one, state) {
  const heads = one.role[0].length;
  const opacity = one.role.map((row, layer) => row.map((role, head) => (role >= 0 ? one.means[ROLES[role]][layer][head] : 1)));
  const describe = (place) => {
    const [layer, head] = [Math.floor(place / heads), place % heads];
    const role = one.role[layer][head];
    const scores = ROLES.map((name) => `${name} ${fixed(one.means[name][layer][head], 2)} [${fixed(one.ends[name][0][layer][head], 2)}, ${fixed(one.ends[name][1][layer][head], 2)}]`);
    return [`${headName(layer, head)}: ${role >= 0 ? ROLES[role] : "none"}`, ...scores];
  };
  return headMap({ title: `${titleOf(one.task)}: ${one.model}, ${plural(one.seeds, "seed")}`, values: one.role, kind: "roles", opacity, describe, onPick: (head) => state.set({ head }) });
}

const roleLegend = () => legendOf([...ROLES.map((role, at) => ({ label: role, colour: `role${at}` })), { label: "none of them", colour: "neither" }]);

function roleSection(run) {
  const tasks = unique(run.checks.map((check) => check.task).concat(run.roles.map((one) => one.task)));
  const models = unique(run.checks.map((check) => check.model).concat(run.roles.map((one) => one.model)));
  const state = choices({ head: null });
  const legend = roleLegend();
  const panels = tasks.flatMap((task) => models.map((model) => {
    const found = run.ablations.find((one) => one.task === task && one.model === model);
    const title = `${titleOf(task)}: ${model}`;
    if (!found) {
      const check = run.checks.find((one) => one.task === task && one.model === model);
      const words = check && run.state === "finished" ? `does not do the task (accuracy ${fixed(check.accuracy, 2)})` : "no curve yet";
      return h("div", { class: "panel" }, h("h4", {}, title), h("p", { class: "empty" }, words));
    }
    const series = ROLES.filter((role) => found.lines[role]).map((role) => ({ label: role, colour: `role${ROLES.indexOf(role)}`, k: found.k, ...found.lines[role] }));
    return curvePanel({ title, series, xLabel: "Number of ablated heads", yLabel: "Δ log P(target)", zero: true }).element;
  }));
  const maps = run.roles.map((one) => roleMap(one, state));
  state.watch("head", ({ head }) => maps.forEach((map) => map.point(head)));
  const rows = run.roles.flatMap((one) => one.role.flatMap((row, layer) => row.map((role, head) => ({
    model: one.model, task: one.task, head: headName(layer, head), role: role >= 0 ? ROLES[role] : "none",
    ...Object.fromEntries(ROLES.map((name) => [name, one.means[name][layer][head]])) }))));
  const number = (key) => ({ key, title: key, number: true, show: (value) => fixed(value) });
  const columns = [{ key: "head", title: "Head" }, { key: "task", title: "Task", show: titleOf }, { key: "model", title: "Model" }, { key: "role", title: "Role" }, ...ROLES.map(number)];
  return h("div", { class: "grid" },
    figureOf("Change of the target's log-probability as heads are taken away", { run, names: ["ablation"], wide: true, note: "Heads in the order of each score; bands from the lowest seed to the highest, on held-out prompts." }, legend, h("div", { class: "panels" }, panels)),
    maps.length ? figureOf("Role maps", { run, names: namesOf(run, "map-"), wide: true, note: "The role that a head has in most seeds; the fainter, the weaker. Hover for its scores: mean over seeds, lowest and highest." }, legend.cloneNode(true), h("div", { class: "side-by-side" }, maps.map((map) => map.element))) : null,
    rows.length ? figureOf("Heads", {}, tableOf({ caption: "Roles of heads", columns, rows, search: true, page: 25, sort: { key: "facilitation", down: true }, onPick: (row) => state.set({ head: row.head }) }).element) : null,
    h("div", {}, plainTable("Share of heads with each role", run.tables.shares), plainTable("Facilitation against exact patching", run.tables.patching),
      plainTable("Agreement between models", run.tables.agreement), plainTable("Gates that keep one task and forget another", run.tables.contrasts)));
}
