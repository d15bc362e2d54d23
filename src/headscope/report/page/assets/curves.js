// A panel of curves with bands: hover reads values, a click sets k, a dashed line shows a multiplier.

const PANEL = { width: 320, height: 215, left: 42, right: 12, top: 10, bottom: 36 };

// Round numbers that cover a range.
function ticksOf(low, high, most = 5) {
  const raw = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((by) => by * size).find((by) => by >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) ticks.push(Number(at.toPrecision(12)));
  return ticks;
}

function scaleOf(from, to, start, end, log) {
  const by = log ? (value) => Math.log(value) : (value) => value;
  const [a, b] = [by(from), by(to)];
  const scale = (value) => start + ((by(value) - a) / (b - a || 1)) * (end - start);
  scale.back = (at) => {
    const value = a + ((at - start) / (end - start)) * (b - a);
    return log ? Math.exp(value) : value;
  };
  return scale;
}

// Points of a line, at most a few for each pixel, so that a long curve draws as fast as a short one.
function thinned(xs, ys) {
  const points = [];
  let column = null;
  for (let i = 0; i < xs.length; i++) {
    if (!known(xs[i]) || !known(ys[i])) { points.push(null); column = null; continue; }
    const at = Math.round(xs[i] * 2);
    if (xs.length > 800 && column && column.at === at) {
      if (ys[i] < column.low[1]) column.low = [xs[i], ys[i]];
      if (ys[i] > column.high[1]) column.high = [xs[i], ys[i]];
      column.last = [xs[i], ys[i]];
      points[column.place] = [column.low, column.high, column.last];
    } else {
      column = { at, low: [xs[i], ys[i]], high: [xs[i], ys[i]], place: points.length };
      points.push([[xs[i], ys[i]]]);
    }
  }
  return points;
}

function pathOf(xs, ys) {
  let text = "";
  let pen = "M";
  for (const point of thinned(xs, ys)) {
    if (point === null) { pen = "M"; continue; }
    for (const [x, y] of point) { text += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`; pen = "L"; }
  }
  return text;
}

function bandOf(xs, lows, highs) {
  const there = thinned(xs, highs).filter(Boolean).flat();
  const back = thinned(xs, lows).filter(Boolean).flat().reverse();
  if (there.length < 2) return "";
  return `M${[...there, ...back].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}Z`;
}

// series: [{ label, colour, dash, k, mid, low, high }]; segment: { from, to, text } at the height of the threshold.
function curvePanel({ title, series, log = false, xLabel, yLabel, yRange = null, yTicks = null, xTicks = null, threshold = null,
  segment = null, levels = [], zero = false, onPick = null, pickable = true, digits = 3 }) {
  const { width, height, left, right, top, bottom } = PANEL;
  const xsOf = (one) => one.k.filter((k) => !log || k > 0);
  const all = series.flatMap(xsOf);
  const [first, last] = all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
  let [low, high] = yRange || [0, 1];
  if (!yRange) {
    const values = series.flatMap((one) => [...one.mid, ...(one.low || []), ...(one.high || [])]).filter(known);
    low = Math.min(0, ...thin(values)); high = Math.max(0, ...thin(values));
    const air = (high - low || 1) * 0.07;
    [low, high] = [low - air, high + air];
  }
  const padded = xTicks ? [first / 1.25, last * 1.25] : [first, last];
  const x = scaleOf(padded[0], padded[1] === padded[0] ? padded[0] + 1 : padded[1], left, width - right, log);
  const y = scaleOf(low, high, height - bottom, top, false);
  const plot = svg("g", { class: "plot" });
  for (const at of yTicks || ticksOf(low, high)) {
    plot.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      svg("text", { class: "tick end", x: left - 6, y: y(at) + 3.5 }, signOf(String(at))));
  }
  const decades = ticksOf(Math.log10(Math.max(first, 1)), Math.log10(Math.max(last, 10)), 6).filter(Number.isInteger).map((at) => 10 ** at);
  const ticks = xTicks || (log ? decades : ticksOf(first, last, 6));
  for (const at of ticks.filter((one) => one >= padded[0] && one <= padded[1]))
    plot.append(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: height - bottom, y2: height - bottom + 3 }),
      svg("text", { class: "tick middle", x: x(at), y: height - bottom + 14 }, at >= 10000 ? `${at / 1000}k` : count(at)));
  plot.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (zero) plot.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(0), y2: y(0) }));
  const clip = `clip-${groups++}`;
  const lines = svg("g", { "clip-path": `url(#${clip})` });
  const frame = { x: left, y: top - 4, width: width - left - right, height: height - top - bottom + 4 };
  plot.append(svg("clipPath", { id: clip }, svg("rect", frame)), lines);
  if (threshold !== null) lines.append(svg("line", { class: "threshold", x1: left, x2: width - right, y1: y(threshold), y2: y(threshold) }));
  for (const { value, colour } of levels) if (known(value))
    lines.append(svg("line", { class: `level ${colour}`, x1: left, x2: width - right, y1: y(value), y2: y(value) }));
  // (What lies far outside is cut off; its place must be a number that a path can hold.)
  const far = (value) => (known(value) ? y(Math.min(Math.max(value, low - 2 * (high - low)), high + 2 * (high - low))) : null);
  for (const one of series) {
    const keep = one.k.map((k, place) => place).filter((place) => !log || one.k[place] > 0);
    const xs = keep.map((place) => x(one.k[place]));
    if (one.low) lines.append(svg("path", { class: `band ${one.colour}`, d: bandOf(xs, keep.map((p) => far(one.low[p])), keep.map((p) => far(one.high[p]))) }));
    lines.append(svg("path", { class: `line ${one.colour} ${one.dash || ""}`, d: pathOf(xs, keep.map((p) => far(one.mid[p]))) }));
    if (one.dots) lines.append(...keep.filter((p) => known(one.mid[p])).map((p) => svg("circle", { class: `dot ${one.colour}`, cx: x(one.k[p]), cy: y(one.mid[p]), r: 3 })));
  }
  if (segment) {
    const [a, b] = [Math.max(segment.from, padded[0]), Math.max(segment.to, padded[0])].map(x);
    const middle = Math.min(Math.max((a + b) / 2, left + 22), width - right - 22);
    plot.append(svg("line", { class: "segment", x1: a, x2: b, y1: y(threshold), y2: y(threshold) }),
      svg("text", { class: "multiplier middle", x: middle, y: y(threshold) - 5 }, segment.text));
  }
  const marker = svg("line", { class: "marker", y1: top - 4, y2: height - bottom, visibility: "hidden" });
  const hair = svg("line", { class: "hair", y1: top - 4, y2: height - bottom, visibility: "hidden" });
  const dots = series.map((one) => svg("circle", { class: `dot ${one.colour}`, r: 3.4, visibility: "hidden" }));
  plot.append(marker, hair, ...dots,
    svg("text", { class: "name middle", x: (left + width - right) / 2, y: height - 5 }, xLabel),
    svg("text", { class: "name middle", transform: `translate(11 ${(height - bottom + top) / 2}) rotate(-90)` }, yLabel));
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${yLabel} against ${xLabel}` }, plot);

  const pointed = (event) => {
    const box = chart.getBoundingClientRect();
    return x.back(((event.clientX - box.left) / box.width) * width);
  };
  // The measured point nearest to the pointer.
  const nearest = (ks, k) => {
    const at = placeOf(ks, k);
    if (at < 0) return 0;
    const away = (value) => (log ? Math.abs(Math.log(Math.max(value, 1e-9)) - Math.log(Math.max(k, 1e-9))) : Math.abs(value - k));
    return at + 1 < ks.length && away(ks[at + 1]) < away(ks[at]) ? at + 1 : at;
  };
  const leave = () => {
    hush();
    for (const one of [hair, ...dots]) one.setAttribute("visibility", "hidden");
  };
  on(chart, "pointermove", (event) => {
    const k = pointed(event);
    if (series.length === 0 || k < padded[0] * 0.9 - 1 || k > padded[1] * 1.1 + 1) return leave();
    const rows = series.map((one, number) => {
      const at = nearest(one.k, k);
      const shown = known(one.mid[at]) && (!log || one.k[at] > 0);
      dots[number].setAttribute("visibility", shown ? "visible" : "hidden");
      if (shown) { dots[number].setAttribute("cx", x(one.k[at])); dots[number].setAttribute("cy", far(one.mid[at])); }
      const range = one.low ? ` [${fixed(one.low[at], digits)}, ${fixed(one.high[at], digits)}]` : "";
      return h("div", {}, h("i", { class: `key ${one.colour} ${one.dash || ""}` }), `${one.label}, k ${count(one.k[at])}: ${fixed(one.mid[at], digits)}${range}`);
    });
    const at = x(series[0].k[nearest(series[0].k, k)]);
    hair.setAttribute("x1", at); hair.setAttribute("x2", at); hair.setAttribute("visibility", "visible");
    say(event, rows);
  });
  on(chart, "pointerleave", leave);
  if (onPick && pickable) on(chart, "click", (event) => onPick(pointed(event)));
  return {
    element: h("div", { class: "panel" }, title ? h("h4", {}, title) : null, chart),
    mark(k) {
      const seen = k !== null && k >= padded[0] && k <= padded[1] && (!log || k > 0);
      marker.setAttribute("visibility", seen ? "visible" : "hidden");
      if (seen) { marker.setAttribute("x1", x(k)); marker.setAttribute("x2", x(k)); }
    },
  };
}

// The ends of a long list, cheap enough to spread.
function thin(values) {
  return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [0];
}

const legendOf = (series) => h("ul", { class: "legend" },
  series.map((one) => h("li", {}, h("i", { class: `key ${one.colour} ${one.dash || ""}` }), one.label)));
