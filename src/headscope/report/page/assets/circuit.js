// The circuit graph: layers upward, a column per head number, MLPs and both ends to the right. Edges come in the order of
// their rank up to k; a click on a component shows the paths through it.

const DRAWN = 250;

// Edges of a graph in rank order, with names; `joined`: the k from which on an edge lies on a path from the embedding to
// the logits.
function edgesOf(graph) {
  graph.edges ??= graph.writer.map((writer, place) => {
    const [from, reader] = [graph.writers[writer], graph.readers[graph.reader[place]]];
    const to = reader.replace(/\.[qkv]$/, "");
    return { rank: place + 1, edge: `${from}->${reader}`, from, to, score: graph.score[place], joined: graph.joined[place] ?? Infinity };
  });
  graph.nodes ??= new Map(Object.entries(graph.layers).map(([name, layer]) => [name, { name, layer, column: Number(/H(\d+)$/.exec(name)?.[1] ?? -1) }]));
  return graph.edges;
}

function reachedFrom(name, edges, from, to) {
  const next = new Map();
  for (const edge of edges) {
    if (!next.has(edge[from])) next.set(edge[from], []);
    next.get(edge[from]).push(edge[to]);
  }
  const found = new Set([name]);
  const queue = [name];
  while (queue.length) for (const other of next.get(queue.pop()) || []) if (!found.has(other)) { found.add(other); queue.push(other); }
  return found;
}

function circuitGraph(graph, state) {
  const edges = edgesOf(graph);
  const rowHeight = graph.n_layers > 40 ? 15 : graph.n_layers > 16 ? 25 : 44;
  const columnWidth = Math.max(13, Math.min(62, 900 / (graph.n_heads + 1)));
  const named = columnWidth >= 40;
  const [left, top] = [columnWidth / 2 + 8, 22];
  const width = (graph.n_heads + 1) * columnWidth + 40;
  const height = (graph.n_layers + 1.6) * rowHeight + 2 * top;
  const at = (node) => [
    node.column >= 0 ? left + node.column * columnWidth : left + graph.n_heads * columnWidth + 14,
    height - top - (node.layer + 1) * rowHeight - (node.layer === graph.n_layers ? 0.2 * rowHeight : 0),
  ];
  const lines = svg("g");
  const boxes = svg("g");
  const drawing = svg("svg", { class: "circuit", viewBox: `0 0 ${width} ${height}` }, lines, boxes);
  drawing.style.maxWidth = `${Math.max(420, width * 1.05)}px`;
  const told = h("p", { class: "told", "aria-live": "polite" });
  const board = h("div", { class: "board", tabindex: "0", role: "application", "aria-roledescription": "circuit",
    "aria-label": `Circuit of ${graph.model}. Left and right arrow keys go through the components, Escape lets go.` }, drawing);
  const dots = [];
  for (let layer = 0; layer < graph.n_layers; layer++)
    for (let head = 0; head < graph.n_heads; head++) dots.push(svg("circle", { class: "absent", cx: at({ layer, column: head })[0], cy: at({ layer, column: head })[1], r: 1.6 }));
  drawing.prepend(...dots);
  let order = [];
  let shown = [];
  let words = "";
  const largest = edges.reduce((best, edge) => Math.max(best, Math.abs(edge.score ?? 0)), 0) || 1;
  const shareOf = (edge) => Math.sqrt(Math.abs(edge.score ?? 0) / largest);

  function linkOf(edge) {
    const [[x1, y1], [x2, y2]] = [at(graph.nodes.get(edge.from)), at(graph.nodes.get(edge.to))];
    const lift = (y1 - y2) * 0.45;
    const bend = x1 === x2 && y1 - y2 > rowHeight * 1.1 ? columnWidth * 0.42 : 0;
    const path = svg("path", { "stroke-width": (0.5 + 3.2 * shareOf(edge)).toFixed(2),
      d: `M${x1.toFixed(1)} ${y1.toFixed(1)}C${(x1 + bend).toFixed(1)} ${(y1 - lift).toFixed(1)} ${(x2 + bend).toFixed(1)} ${(y2 + lift).toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}` });
    path.edge = edge;
    return path;
  }

  function boxOf(name) {
    const one = graph.nodes.get(name);
    const [x, y] = at(one);
    const wide = one.column < 0 || named;
    const [w, t] = wide ? [Math.max(30, 7 + 5.4 * name.length), Math.min(15, rowHeight * 0.62)] : [9, 9];
    const box = svg("g", {}, svg("rect", { x: x - w / 2, y: y - t / 2, width: w, height: t, rx: 4 }),
      wide ? svg("text", { class: "middle", x, y: y + Math.min(3.4, t * 0.24) }, name) : svg("title", {}, name));
    box.name = name;
    return box;
  }

  function draw({ k, floor, connected, node }) {
    const chosen = edges.slice(0, k).filter((edge) => Math.abs(edge.score ?? 0) >= (floor / 100) * largest && (!connected || edge.joined <= k));
    shown = chosen.slice(0, DRAWN);
    lines.replaceChildren(...shown.toReversed().map(linkOf));
    const height = (name) => graph.nodes.get(name).layer;
    order = unique(shown.flatMap((edge) => [edge.from, edge.to])).sort((a, b) => height(a) - height(b) || graph.nodes.get(a).column - graph.nodes.get(b).column);
    boxes.replaceChildren(...order.map(boxOf));
    const rest = chosen.length > shown.length ? `, of which the ${DRAWN} best are drawn` : "";
    const missing = k > edges.length ? ` (the page holds the ${count(edges.length)} best of ${count(graph.total)})` : "";
    words = `${plural(chosen.length, "edge")} between ${plural(order.length, "component")}${rest}${missing}.`;
    highlight({ node });
  }

  // Which edges lie on a path through the chosen component, and which components these join.
  function highlight({ node }) {
    const through = order.includes(node) ? node : null;
    const [up, down] = through ? [reachedFrom(through, shown, "from", "to"), reachedFrom(through, shown, "to", "from")] : [];
    const onPath = (edge) => !through || (down.has(edge.to) && down.has(edge.from)) || (up.has(edge.from) && up.has(edge.to));
    for (const path of lines.children) {
      const kept = onPath(path.edge);
      path.setAttribute("class", `link ${path.edge.score < 0 ? "hinders" : "helps"} ${kept ? (through ? "path" : "") : "faint"}`);
      path.style.opacity = kept ? 0.35 + 0.6 * shareOf(path.edge) : 0.06;
    }
    const kept = shown.filter(onPath);
    const names = new Set(kept.flatMap((edge) => [edge.from, edge.to]));
    for (const box of boxes.children)
      box.setAttribute("class", `node ${box.name.startsWith("L") ? "head" : "other"} ${box.name === through ? "chosen" : ""} ${names.has(box.name) ? "" : "faint"}`);
    told.textContent = through ? `${words} Paths through ${through}: ${plural(kept.length, "edge")}.` : words;
  }

  state.watch("k floor connected", draw);
  state.watch("node", highlight);
  const nameAt = (event) => { const box = event.target.closest(".node"); return box ? box.name : null; };
  on(board, "click", (event) => state.set({ node: nameAt(event) === state.get("node") ? null : nameAt(event) }));
  on(board, "pointermove", (event) => {
    const [name, edge] = [nameAt(event), event.target.edge];
    if (edge) return say(event, [edge.edge, `score ${signed(edge.score, 4)}, rank ${edge.rank}`]);
    return name ? say(event, [name, "Click to see the paths through it"]) : hush();
  });
  on(board, "pointerleave", hush);
  on(board, "keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") return state.set({ node: null });
    if (!step || order.length === 0) return;
    event.preventDefault();
    state.set({ node: order[(order.indexOf(state.get("node")) + step + order.length) % order.length] });
  });
  return h("div", { class: "circuit-box" }, h("h4", {}, `${graph.model}, ${graph.method}`), board, told);
}
