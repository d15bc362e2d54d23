// The head map: a cell per head, coloured by score; arrow keys move, a click or Enter chooses. The longer side lies flat.


// values: (L, H). kind: "diverging" around zero, "sequential" from zero, or "roles" (values are places in `classes`, and
// `opacity` says how strongly a head has its role).
function headMap({ title, values, kind = "diverging", opacity = null, describe, onPick, scale = "Score (positive: it helps)", limit = null }) {
  const layers = values.length;
  const heads = layers ? values[0].length : 0;
  const flat = layers > heads;
  const [columns, rows] = flat ? [layers, heads] : [heads, layers];
  const cellSize = columns <= 8 ? 32 : columns <= 16 ? 24 : 18;
  const largest = limit || values.flat().reduce((a, b) => Math.max(a, known(b) ? Math.abs(b) : 0), 0) || 1;
  const [left, bottom] = [34, 30];
  const grid = svg("g", { transform: `translate(${left} 4)` });
  const cells = [];
  // Layers go upward where they do not lie flat.
  const placeOfHead = (layer, head) => (flat ? [layer, head] : [head, layers - 1 - layer]);
  values.forEach((row, layer) => row.forEach((value, head) => {
    const [column, line] = placeOfHead(layer, head);
    const cell = svg("rect", { x: column * cellSize + 1, y: line * cellSize + 1, width: cellSize - 2, height: cellSize - 2, rx: 2 });
    paint(cell, value, opacity ? opacity[layer][head] : null);
    cell.place = cells.length;
    cells.push(cell);
  }));

  function paint(cell, value, strong) {
    if (kind === "roles") {
      cell.setAttribute("class", `cell ${value >= 0 ? `role${value}` : "neither"}`);
      if (value >= 0) cell.style.fillOpacity = Math.max(0.3, Math.min(1, strong ?? 1));
      return;
    }
    cell.setAttribute("class", !known(value) ? "cell none" : value < 0 ? "cell minus" : kind === "sequential" ? "cell amount" : "cell plus");
    if (known(value)) cell.style.setProperty("--share", `${Math.min(100, (Math.abs(value) / largest) * 100).toFixed(1)}%`);
  }

  const every = (number) => Math.max(1, Math.ceil(number / 16));
  for (let at = 0; at < columns; at += every(columns))
    grid.append(svg("text", { class: "tick middle", x: (at + 0.5) * cellSize, y: rows * cellSize + 12 }, String(at)));
  for (let at = 0; at < rows; at += every(rows))
    grid.append(svg("text", { class: "tick end", x: -5, y: ((flat ? at : rows - 1 - at) + 0.5) * cellSize + 3.5 }, String(at)));
  grid.append(
    svg("text", { class: "name middle", x: (columns * cellSize) / 2, y: rows * cellSize + 25 }, flat ? "Layer" : "Head"),
    svg("text", { class: "name middle", transform: `translate(-24 ${(rows * cellSize) / 2}) rotate(-90)` }, flat ? "Head" : "Layer"));
  const cursor = svg("rect", { class: "cursor", width: cellSize + 1, height: cellSize + 1, rx: 3, visibility: "hidden" });
  grid.append(...cells, cursor);
  const size = [columns * cellSize + left + 6, rows * cellSize + bottom + 6];
  const map = svg("svg", { class: "map", viewBox: `0 0 ${size[0]} ${size[1]}`, "aria-hidden": "true" }, grid);
  map.style.maxWidth = `${size[0] * (columns > 16 ? 1.35 : 1)}px`;
  const told = h("p", { class: "told", "aria-live": "polite" });
  const board = h("div", { class: "board", tabindex: "0", role: "application", "aria-roledescription": "head map",
    "aria-label": `${title}. Arrow keys move between heads, Enter chooses.` }, map);
  let at = -1;

  function point(name) {
    const place = placeAt(name, heads);
    at = place;
    cursor.setAttribute("visibility", place >= 0 && cells[place] ? "visible" : "hidden");
    if (!cells[place]) { at = -1; told.textContent = "\u00a0"; return; }
    cursor.setAttribute("x", Number(cells[place].getAttribute("x")) - 1.5);
    cursor.setAttribute("y", Number(cells[place].getAttribute("y")) - 1.5);
    told.textContent = describe(place).join(" · ");
  }

  on(board, "click", (event) => { if (event.target.place !== undefined) onPick(nameAt(event.target.place, heads)); });
  on(board, "pointermove", (event) => (event.target.place !== undefined ? say(event, describe(event.target.place)) : hush()));
  on(board, "pointerleave", hush);
  const steps = flat
    ? { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }
    : { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
  on(board, "keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); if (at >= 0) onPick(nameAt(at, heads)); return; }
    if (!steps[event.key]) return;
    event.preventDefault();
    const [layer, head] = at < 0 ? [0, 0] : [Math.floor(at / heads), at % heads];
    const [up, right] = at < 0 ? [0, 0] : steps[event.key];
    const next = [Math.min(layers - 1, Math.max(0, layer + up)), Math.min(heads - 1, Math.max(0, head + right))];
    onPick(headName(...next));
  });
  let before = new Map();
  return {
    element: h("div", { class: "map-box" }, h("h4", {}, title), board, kind === "roles" ? null : scaleBar(kind, largest, scale), told),
    point,
    // How far each head is in: 0 or absent is out, 1 is in.
    members(inside) {
      for (const [place] of before) if (!inside.has(place)) cells[place].style.removeProperty("--in");
      for (const [place, share] of inside) if (before.get(place) !== share && cells[place]) cells[place].style.setProperty("--in", share);
      before = inside;
    },
  };
}

function scaleBar(kind, largest, words) {
  const ends = kind === "sequential" ? ["0", fixed(largest, largest < 0.1 ? 3 : 2)] : [`${MINUS}${fixed(largest, 2)}`, "0", `+${fixed(largest, 2)}`];
  return h("div", { class: "scale" }, h("span", { class: `ramp ${kind}` }), h("div", { class: "ends" }, ends.map((end) => h("span", {}, end))), h("span", { class: "words" }, words));
}
