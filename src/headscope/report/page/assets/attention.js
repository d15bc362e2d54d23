// Attention patterns of the chosen head on a chosen prompt, the models of a run side by side.

const SQUARE = 15;
const seen = (token) => token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
const cut = (text) => (text.length > 14 ? `${text.slice(0, 13)}…` : text);

// The weight from one position to an earlier one, from 0 to 1.
function weights(found) {
  found.bytes ??= bytesOf(found.data);
  const length = found.tokens[0].length;
  const half = (length * (length + 1)) / 2;
  return (prompt, head) => {
    const place = found.heads.indexOf(placeAt(head, found.n_heads));
    if (place < 0) return null;
    const start = (prompt * found.heads.length + place) * half;
    return (query, key) => found.bytes[start + (query * (query + 1)) / 2 + key] / 255;
  };
}

// Blue over whatever lies below, as strong as the weight, so that it serves light, dark and paper.
function picture(length, weight) {
  const canvas = h("canvas", { width: length, height: length });
  const drawing = canvas.getContext("2d");
  const image = drawing.createImageData(length, length);
  for (let query = 0; query < length; query++)
    for (let key = 0; key <= query; key++)
      image.data.set([0, 114, 178, Math.round(255 * weight(query, key) ** 0.6)], 4 * (query * length + key));
  drawing.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function pattern(found, prompt, head) {
  const tokens = found.tokens[prompt];
  const length = tokens.length;
  const weight = weights(found)(prompt, head);
  if (weight === null)
    return h("p", { class: "empty" }, found.left_out ? "The pattern of this head was left out to keep the page small." : "This model has no such head.");
  const small = length > 60;
  const side = small ? 7 : SQUARE;
  const room = small ? 8 : 8 + 6.2 * Math.max(...tokens.map((token) => Math.min(14, seen(token).length)));
  const body = length * side;
  const frame = svg("svg", { class: "pattern", viewBox: `0 0 ${room + body + 4} ${body + room + 4}`, role: "img",
    "aria-label": `Attention of ${head} of ${found.model}: rows attend to columns` });
  frame.style.maxWidth = `${Math.max(240, Math.min(560, (room + body) * 1.25))}px`;
  const cross = [svg("rect", { class: "cross", width: body, height: side, visibility: "hidden" }), svg("rect", { class: "cross", width: side, height: body, visibility: "hidden" })];
  const image = svg("image", { x: room, y: 2, width: body, height: body, href: picture(length, weight), preserveAspectRatio: "none" });
  frame.append(svg("rect", { class: "field", x: room, y: 2, width: body, height: body }), image,
    svg("path", { class: "later", d: `M${room + side} 2H${room + body}V${2 + body - side}${tokens.slice(2).map(() => `h${-side}v${-side}`).join("")}h${-side}Z` }), ...cross);
  if (!small) tokens.forEach((token, at) => {
    const middle = (at + 0.5) * side;
    frame.append(svg("text", { class: "token end", x: room - 4, y: middle + 5 }, cut(seen(token))),
      svg("text", { class: "token end", transform: `translate(${room + middle + 3} ${body + 7}) rotate(-90)` }, cut(seen(token))));
  });
  const leave = () => { hush(); for (const one of cross) one.setAttribute("visibility", "hidden"); };
  on(frame, "pointermove", (event) => {
    const box = frame.getBoundingClientRect();
    const by = (room + body + 4) / box.width;
    const key = Math.floor(((event.clientX - box.left) * by - room) / side);
    const query = Math.floor(((event.clientY - box.top) * by - 2) / side);
    if (query < 0 || key < 0 || query >= length || key > query) return leave();
    cross[0].setAttribute("x", room); cross[0].setAttribute("y", 2 + query * side);
    cross[1].setAttribute("x", room + key * side); cross[1].setAttribute("y", 2);
    for (const one of cross) one.setAttribute("visibility", "visible");
    say(event, [`${seen(tokens[query])} (${query}) attends to ${seen(tokens[key])} (${key})`, `weight ${fixed(weight(query, key))}`]);
  });
  on(frame, "pointerleave", leave);
  let open = 0;
  for (let query = 0; query < length; query++) for (let key = 0; key <= query; key++) if (weight(query, key) > 0) open += 1;
  const words = `${count(open)} of ${count((length * (length + 1)) / 2)} weights are 0.002 or more`;
  return h("div", {}, frame, h("p", { class: "small-words" }, words));
}

// state knows task, head and prompt.
function attentionFigure(run, state) {
  const all = run.attention || [];
  if (all.length === 0) return null;
  const body = h("div", { class: "side-by-side" });
  const pick = h("select", { "aria-label": "Prompt" });
  on(pick, "change", () => state.set({ prompt: Number(pick.value) }));
  const note = h("figcaption");
  const title = h("h3", {}, "Attention of the chosen head");
  state.watch("task head prompt", ({ task, head, prompt }) => {
    const found = all.filter((one) => one.task === task);
    if (found.length === 0 || head === null) {
      body.replaceChildren(h("p", { class: "empty" }, found.length ? "Choose a head in a map." : "No patterns were kept for this task."));
      return;
    }
    const many = Math.min(...found.map((one) => one.tokens.length));
    const chosen = Math.min(prompt, many - 1);
    pick.replaceChildren(...found[0].tokens.slice(0, many).map((tokens, at) => h("option", { value: at, selected: at === chosen }, cut2(tokens.join("")))));
    title.textContent = `Attention of ${head}`;
    body.replaceChildren(...found.map((one) => h("div", {}, h("h4", {}, one.model), pattern(one, chosen, head))));
    const left = found[0].left_out ? ` Only ${plural(found[0].heads.length, "head")} with the largest scores are on this page; ${count(found[0].left_out)} were left out to keep it small.` : "";
    note.textContent = `Rows attend to columns. Weights as they pass (behind the gate of a sparse model), rounded to 1/255; colours follow weight^0.6.${left}`;
  });
  return h("figure", { class: unique(all.map((one) => one.model)).length > 1 ? "wide" : null }, h("div", { class: "figure-head" }, title, h("label", { class: "pick" }, "Prompt ", pick)), body, note);
}

const cut2 = (text) => (text.length > 90 ? `${text.slice(0, 89)}…` : text);
