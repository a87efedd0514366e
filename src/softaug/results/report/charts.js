"use strict";
// Two small charts in SVG: lines over an axis, and dots with whiskers by row. Strings only ever become text nodes.

const SVG_SPACE = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_SPACE, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function plain(value, digits = 0) {
  const shown = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (/^-0(\.0+)?$/.test(shown) ? shown.slice(1) : shown).replace("-", "−");
}

function asReturn(value) {
  return plain(value, Math.abs(value) >= 99.95 ? 0 : 1);
}

function asPercent(value) {
  return `${plain(100 * value)} %`;
}

/** Round numbers that cover low..high in about `count` steps; the first and last enclose both. */
function ticks(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

/** 250000 -> "250k" */
function compact(value) {
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return plain(value, Number.isInteger(value) ? 0 : 1);
}

const nameOf = (series) => (series.variant ? `${series.label} · ${series.variant}` : series.label);
const style = (series) => `hue-${series.hue} ${series.dash}`;

/** A mark around (x, y); its shape goes with the series' dash, so that color is never the only difference. */
function mark(series, x, y, r, kind = "dot") {
  const s = r * 0.9;
  const shapes = {
    solid: () => draw("circle", { cx: x, cy: y, r }),
    dashed: () => draw("rect", { x: x - s, y: y - s, width: 2 * s, height: 2 * s }),
    dotted: () => draw("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z` }),
    dashdot: () => draw("path", { d: `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}L${x - 1.2 * r} ${y + r}Z` }),
    sparse: () => draw("path", { d: `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}L${x - 1.2 * r} ${y - r}Z` }),
  };
  const shape = shapes[series.dash]();
  shape.setAttribute("class", `${kind} ${style(series)}`);
  return shape;
}

/** A small piece of the series' line with its mark. */
function sample(series) {
  const line = draw("line", { class: "line", x1: 1, x2: 27, y1: 7, y2: 7 });
  return draw("svg", { class: `sample ${style(series)}`, width: 28, height: 14, "aria-hidden": "true" }, line, mark(series, 14, 7, 4));
}

/** Series of one method that differ in settings get dashes of their own. */
function withDashes(list) {
  const seen = new Map();
  return list.map((series) => {
    const nth = seen.get(series.method) || 0;
    seen.set(series.method, nth + 1);
    return nth ? { ...series, dash: ["dotted", "dashdot", "sparse"][(nth - 1) % 3] } : series;
  });
}

/** Buttons that switch series on and off, in every chart of the page. */
function legend(list, hidden, changed) {
  const buttons = list.map((series) => {
    const name = nameOf(series);
    const button = make(
      "button",
      { type: "button", class: "key", "aria-pressed": String(!hidden.has(name)), "data-name": name },
      sample(series),
      name,
    );
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      changed(name);
    });
    return button;
  });
  return make("div", { class: "legend", role: "group", "aria-label": "Show methods" }, buttons);
}

/** Moves labels apart that would overlap. Their y changes, their order does not. */
function spreadLabels(labels, gap, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  let previous = top - gap;
  for (const label of labels) previous = label.y = Math.max(label.y, previous + gap);
  let next = bottom + gap;
  for (const label of labels.reverse()) next = label.y = Math.min(label.y, next - gap);
}

/**
 * Lines with bands.
 * series: [{label, variant, method, hue, dash, x, y, low, high, n, faint: [[...], ...], reference}]; null breaks a line;
 * reference: a thin line
 * options: {xTitle, xUnit, yTitle, xText, yText, yTick, xMax, yMax, steps, bare, label, hidden, changed};
 * bare: no names at the ends of the lines
 */
function lineChart(box, series, options) {
  const all = withDashes(series);
  const shown = all.filter((s) => !options.hidden.has(nameOf(s)) && s.y.some((v) => v !== null));
  const width = Math.max(280, box.clientWidth);
  const height = Math.round(Math.min(380, Math.max(240, width * 0.45)));
  const longest = Math.max(0, ...shown.map((s) => nameOf(s).length));
  const labelled = !options.bare && width >= 640 && shown.length <= 9 && longest <= 34;
  const area = { left: 54, right: width - (labelled ? 20 + longest * 6.7 : 26), top: 12, bottom: height - 44 };
  const known = (values) => (values || []).filter((v) => v !== null && v !== undefined);
  const heights = shown.flatMap((s) => [...known(s.y), ...known(s.low), ...known(s.high), ...known((s.faint || []).flat())]);
  const widths = shown.flatMap((s) => s.x);
  const yTicks = ticks(Math.min(0, ...heights), options.yMax || Math.max(1, ...heights), 5);
  const xTicks = ticks(0, options.xMax || Math.max(1, ...widths), width < 500 ? 4 : 7);
  const xEnd = options.xMax || Math.max(1, ...widths);
  const px = (x) => area.left + (x / xEnd) * (area.right - area.left);
  const [yLow, yHigh] = [yTicks[0], yTicks[yTicks.length - 1]];
  const py = (y) => area.bottom - ((y - yLow) / (yHigh - yLow)) * (area.bottom - area.top);

  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const t of yTicks) {
    svg.append(draw("line", { class: t === 0 ? "axis" : "grid", x1: area.left, x2: area.right, y1: py(t), y2: py(t) }));
    svg.append(draw("text", { x: area.left - 8, y: py(t) + 4, "text-anchor": "end" }, options.yTick(t)));
  }
  for (const t of xTicks.filter((value) => value <= xEnd * 1.0001)) {
    svg.append(draw("line", { class: "axis", x1: px(t), x2: px(t), y1: area.bottom, y2: area.bottom + 5 }));
    svg.append(draw("text", { x: px(t), y: area.bottom + 19, "text-anchor": "middle" }, options.xText(t)));
  }
  const middle = (area.left + area.right) / 2;
  svg.append(draw("text", { class: "title", x: middle, y: height - 6, "text-anchor": "middle" }, options.xTitle));
  const yMiddle = (area.top + area.bottom) / 2;
  svg.append(draw("text", { class: "title", x: 12, y: yMiddle, "text-anchor": "middle", transform: `rotate(-90 12 ${yMiddle})` }, options.yTitle));

  for (const s of shown) {
    const group = draw("g", { class: style(s) + (s.reference ? " reference" : ""), "data-series": nameOf(s) });
    if (s.low) for (const part of bands(s)) group.append(draw("path", { class: "band", d: bandPath(part, px, py) }));
    for (const y of s.faint || []) group.append(draw("path", { class: "faint", d: path(s.x, y, px, py) }));
    group.append(draw("path", { class: "line", d: path(s.x, s.y, px, py, options.steps) }));
    const drawn = s.y.filter((v) => v !== null).length;
    if (drawn <= 12) {
      s.y.forEach((y, i) => y !== null && group.append(mark(s, px(s.x[i]), py(y), s.reference ? 4 : 3)));
    }
    svg.append(group);
  }
  if (labelled) {
    const labels = shown.map((s) => {
      const last = s.y.findLastIndex((v) => v !== null);
      return { series: s, y: py(s.y[last]) };
    });
    spreadLabels(labels, 16, area.top + 4, area.bottom);
    for (const { series: s, y } of labels) {
      svg.append(draw("text", { class: `end ${style(s)}`, x: area.right + 8, y: y + 4 }, nameOf(s)));
    }
  }
  if (!shown.length) {
    svg.append(draw("text", { class: "title", x: middle, y: yMiddle, "text-anchor": "middle" }, all.length ? "all methods are switched off" : "no values here yet"));
  }

  const cursor = draw("line", { class: "cursor", y1: area.top, y2: area.bottom, visibility: "hidden" });
  const marks = draw("g");
  svg.append(cursor, marks);
  const tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const plot = make(
    "div",
    { class: "plot", tabindex: "0", role: "slider", "aria-label": options.label, "aria-valuemin": 0, "aria-valuemax": xEnd, "aria-valuenow": 0, "aria-valuetext": "arrow keys read the values" },
    svg,
    tip,
  );

  const grid = [...new Set(widths)].sort((a, b) => a - b);
  let at = -1;
  function read(index) {
    at = Math.max(0, Math.min(grid.length - 1, index));
    const x = grid[at];
    const rows = shown.map((s) => valueAt(s, x)).filter((row) => row !== null).sort((a, b) => b.y - a.y);
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    marks.replaceChildren(...rows.map((row) => mark(row.series, px(row.x), py(row.y), 4)));
    const title = `${options.xText === compact ? plain(x) : options.xText(x)} ${options.xUnit}`;
    const value = (row) => options.yText(row.y) + (row.spread ? ` ± ${options.yText(row.spread)}` : "") + (row.n > 1 ? ` (${row.n} seeds)` : "");
    tip.replaceChildren(
      make("strong", {}, title),
      ...rows.map((row) => make("div", {}, sample(row.series), make("span", { class: "who" }, nameOf(row.series)), make("span", { class: "what" }, value(row)))),
    );
    tip.hidden = false;
    const left = px(x) < width / 2 ? px(x) + 14 : px(x) - 14 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(width - tip.offsetWidth, left))}px`;
    tip.style.top = `${area.top}px`;
    plot.setAttribute("aria-valuenow", x);
    plot.setAttribute("aria-valuetext", `${title}: ${rows.map((row) => `${nameOf(row.series)} ${value(row)}`).join("; ")}`);
  }
  function leave() {
    cursor.setAttribute("visibility", "hidden");
    marks.replaceChildren();
    tip.hidden = true;
  }
  if (grid.length) {
    plot.addEventListener("pointermove", (event) => {
      const scale = width / plot.clientWidth;
      const x = (((event.clientX - plot.getBoundingClientRect().left) * scale - area.left) / (area.right - area.left)) * xEnd;
      read(nearest(grid, x));
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const step = Math.max(1, Math.round(grid.length / 20));
      const moves = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + step, PageDown: at - step, Home: 0, End: grid.length - 1 };
      if (event.key === "Escape") leave();
      if (!(event.key in moves)) return;
      event.preventDefault();
      read(moves[event.key]);
    });
  }
  box.replaceChildren(legend(all, options.hidden, options.changed), plot);
}

function path(x, y, px, py, steps = false) {
  let text = "";
  let pen = false;
  y.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    if (pen && steps) text += `H${px(x[i]).toFixed(1)}`;
    text += `${pen ? "L" : "M"}${px(x[i]).toFixed(1)} ${py(value).toFixed(1)}`;
    pen = true;
  });
  return text;
}

/** The stretches of a series over which its band is known. */
function bands(s) {
  const parts = [[]];
  s.x.forEach((x, i) => {
    if (s.low[i] === null || s.high[i] === null) parts.push([]);
    else parts[parts.length - 1].push([x, s.low[i], s.high[i]]);
  });
  return parts.filter((part) => part.length > 1);
}

function bandPath(part, px, py) {
  const up = part.map(([x, , high]) => `${px(x).toFixed(1)} ${py(high).toFixed(1)}`);
  const down = part.map(([x, low]) => `${px(x).toFixed(1)} ${py(low).toFixed(1)}`).reverse();
  return `M${[...up, ...down].join("L")}Z`;
}

function nearest(sorted, value) {
  let best = 0;
  sorted.forEach((x, i) => {
    if (Math.abs(x - value) < Math.abs(sorted[best] - value)) best = i;
  });
  return best;
}

/** What a series says near x; null beyond its ends. */
function valueAt(s, x) {
  const i = nearest(s.x, x);
  // The few points of a published curve are far apart: it says nothing between them.
  const spacing = s.reference ? 0.02 * x : s.x.length > 1 ? (s.x[s.x.length - 1] - s.x[0]) / (s.x.length - 1) : 0;
  if (s.y[i] === null || Math.abs(s.x[i] - x) > spacing) return null;
  return { series: s, x: s.x[i], y: s.y[i], spread: s.spread ? s.spread[i] : null, n: s.n ? s.n[i] : 0 };
}

function titled(shape, text) {
  shape.append(draw("title", {}, text));
  return shape;
}

/**
 * Dots with whiskers, one row a mode.
 * series: [{..., values: {mode: {mean, std, n}}, paper: {mode: [mean, std]}}]
 * options: {rows, text, tick, xTitle, reference, low, high, hidden, changed, label}
 */
function dotChart(box, series, options) {
  const all = withDashes(series);
  const shown = all.filter((s) => !options.hidden.has(nameOf(s)));
  const width = Math.max(280, box.clientWidth);
  const lane = 18;
  const row = Math.max(1, shown.length) * lane + 16;
  const area = { left: 96, right: width - 66, top: 8, bottom: 8 + row * options.rows.length };
  const height = area.bottom + 44;
  const ends = shown.flatMap((s) =>
    options.rows.flatMap((mode) => {
      const [v, p] = [s.values[mode], s.paper && s.paper[mode]];
      return [...(v ? [v.mean - (v.std || 0), v.mean + (v.std || 0)] : []), ...(p ? [p[0] - p[1], p[0] + p[1]] : [])];
    }),
  );
  const marks = ticks(Math.min(options.low, ...ends), Math.max(options.high, ...ends), width < 500 ? 4 : 8);
  const [low, high] = [marks[0], marks[marks.length - 1]];
  const px = (x) => area.left + ((x - low) / (high - low)) * (area.right - area.left);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${options.label}; the table below has every value` });
  for (const t of marks) {
    svg.append(draw("line", { class: Math.abs(t - options.reference) < 1e-9 ? "axis" : "grid", x1: px(t), x2: px(t), y1: area.top, y2: area.bottom }));
    svg.append(draw("text", { x: px(t), y: area.bottom + 18, "text-anchor": "middle" }, options.tick(t)));
  }
  svg.append(draw("text", { class: "title", x: (area.left + area.right) / 2, y: height - 6, "text-anchor": "middle" }, options.xTitle));
  options.rows.forEach((mode, r) => {
    const top = area.top + r * row;
    if (r) svg.append(draw("line", { class: "grid", x1: 0, x2: area.right, y1: top, y2: top }));
    svg.append(draw("text", { class: "row", x: area.left - 10, y: top + row / 2 + 4, "text-anchor": "end" }, mode));
    shown.forEach((s, i) => {
      const y = top + 8 + (i + 0.5) * lane;
      const [value, paper] = [s.values[mode], s.paper && s.paper[mode]];
      const group = draw("g", { class: style(s), "data-series": nameOf(s) });
      if (paper) {
        group.append(draw("line", { class: "paper", x1: px(paper[0] - paper[1]), x2: px(paper[0] + paper[1]), y1: y, y2: y }));
        group.append(titled(mark(s, px(paper[0]), y, 4.5, "paper"), `${nameOf(s)}, ${mode}: the paper has ${options.text(paper[0])} ± ${options.text(paper[1])}`));
      }
      if (value) {
        const spread = value.std ? ` ± ${options.text(value.std)}` : "";
        const end = px(value.mean + (value.std || 0));
        if (value.std) group.append(draw("line", { class: "line whisker", x1: px(value.mean - value.std), x2: end, y1: y, y2: y }));
        const seeds = value.n > 1 ? `${value.n} seeds` : "1 seed";
        group.append(titled(mark(s, px(value.mean), y, 5), `${nameOf(s)}, ${mode}: ${options.text(value.mean)}${spread} (${seeds})`));
        group.append(draw("text", { class: "reading", x: end + 9, y: y + 4 }, options.text(value.mean)));
      }
      svg.append(group);
    });
  });
  box.replaceChildren(legend(all, options.hidden, options.changed), make("div", { class: "plot" }, svg));
}
