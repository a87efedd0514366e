"use strict";
// What the page does: theme, tabs, sorting, charts, videos, and loading itself again while runs are in progress.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (identifier) => document.getElementById(identifier);
const saved = (history.state && history.state.softaug) || {};
const hidden = new Set(saved.hidden || []);

// ---- theme -----------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = saved.theme || null;

function showTheme() {
  const isDark = theme ? theme === "dark" : dark.matches;
  if (theme) document.documentElement.dataset.theme = theme;
  const button = find("theme");
  button.hidden = false;
  button.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-label", isDark ? "Switch to light colors" : "Switch to dark colors");
}

find("theme").addEventListener("click", () => {
  theme = (theme ? theme === "dark" : dark.matches) ? "light" : "dark";
  showTheme();
});
dark.addEventListener("change", showTheme);

// ---- tables ----------------------------------------------------------------------------------------------------

const sorted = saved.sorted || {};

function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.empty !== undefined) return null;
  const text = cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent.trim();
  const number = Number(text);
  return text !== "" && Number.isFinite(number) ? number : text;
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ row, place, key: sortKey(row, column) }));
  const numbers = rows.every(({ key }) => key === null || typeof key === "number");
  const compare = (a, b) => (numbers ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
    return direction * compare(a.key, b.key) || a.place - b.place;
  });
  body.append(...rows.map(({ row }) => row));
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    if (i === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

document.querySelectorAll("table.sortable").forEach((table, number) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const first = head.classList.contains("number") ? -1 : 1;
      const direction = before === null ? first : before === "ascending" ? -1 : 1;
      sortTable(table, column, direction);
      sorted[number] = [column, direction];
    });
  });
  const [column, direction] = sorted[number] || [];
  if (column < table.tHead.rows[0].cells.length) sortTable(table, column, direction);
});

// ---- tabs ------------------------------------------------------------------------------------------------------

const chosenTabs = saved.tabs || {};

document.querySelectorAll(".tabs").forEach((box, number) => {
  const panels = [...box.querySelectorAll(":scope > section")];
  const tabs = panels.map((panel, i) => {
    panel.id = `panel-${number}-${i}`;
    panel.setAttribute("role", "tabpanel");
    return make("button", { type: "button", role: "tab", id: `tab-${number}-${i}`, "aria-controls": panel.id }, panel.dataset.tab);
  });
  function choose(i, focus) {
    tabs.forEach((tab, j) => {
      tab.setAttribute("aria-selected", String(i === j));
      tab.tabIndex = i === j ? 0 : -1;
      panels[j].hidden = i !== j;
    });
    chosenTabs[number] = panels[i].dataset.tab;
    if (focus) tabs[i].focus();
  }
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(i, false));
    tab.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      choose((moves[event.key] + tabs.length) % tabs.length, true);
    });
  });
  box.prepend(make("div", { role: "tablist", "aria-label": box.dataset.label }, tabs));
  choose(Math.max(0, panels.findIndex((panel) => panel.dataset.tab === chosenTabs[number])), false);
});

// ---- charts ----------------------------------------------------------------------------------------------------

function ofTask(task) {
  return data.groups.filter((group) => group.task === task);
}

/** Published training curves of the task, as far as ours go: they are over frames, so drawn over nothing else. */
function referencesFor(task, what, series) {
  if (!series.length || !["episodes", "train"].includes(what)) return [];
  const end = Math.max(...series.map((s) => s.curveEnd * (s.framesPerDecision || 1)));
  return data.references
    .filter((curve) => curve.task === task)
    .map((curve, i) => {
      const count = curve.x.filter((x) => x <= Math.max(1.25 * end, end >= curve.x[0] / 2 ? curve.x[0] : 0)).length;
      const dash = ["dotted", "dashdot"][i % 2];
      return { ...curve, label: `${curve.label} (published)`, method: curve.label, variant: "", hue: "ink", dash, x: curve.x.slice(0, count), y: curve.y.slice(0, count), reference: true };
    })
    .filter((curve) => curve.x.length);
}

function drawCurves() {
  const box = find("curves-chart");
  if (!box) return;
  const what = find("curves-what").value;
  const unit = find("curves-unit").value;
  const series = ofTask(find("curves-task").value)
    .filter((group) => group.curves[what])
    .map((group) => {
      const curve = group.curves[what];
      const factor = unit === "frames" ? group.framesPerDecision || 1 : 1;
      const around = (sign) => curve.mean.map((m, i) => (curve.std[i] === null ? null : m + sign * curve.std[i]));
      const single = find("curves-seeds").checked;
      return {
        ...group,
        x: curve.x.map((x) => Math.round(x * factor)),
        y: curve.mean,
        low: single ? null : around(-1),
        high: single ? null : around(1),
        spread: curve.std,
        n: curve.n,
        curveEnd: curve.x[curve.x.length - 1],
        media: curve.media,
        leftOut: curve.leftOut,
        faint: single ? Object.values(curve.seeds) : [],
      };
    });
  const references = referencesFor(find("curves-task").value, what, series);
  const drawn = unit === "frames" ? [...series, ...references] : series;
  const media = [...new Set(series.map((s) => s.media).filter((kind) => kind !== null))];
  const on = media.length === 1 ? `, ${media[0]} media` : "";
  const label = what === "episodes" ? "return, training episodes" : `return in ${what}${on}`;
  lineChart(box, drawn, {
    label: `Learning curves, ${label}, over ${unit}`,
    xTitle: unit,
    xUnit: unit,
    yTitle: label,
    xText: compact,
    yText: asReturn,
    yTick: compact,
    hidden,
    changed: redrawAll,
  });
  const sentences = series
    .filter((s) => s.leftOut || (media.length > 1 && s.media !== null))
    .map((s) => {
      const others = s.leftOut ? ` (${s.leftOut} seed${s.leftOut > 1 ? "s" : ""} evaluated on other media left out)` : "";
      return `${nameOf(s)}: ${s.media === null ? "no" : s.media} media${others}.`;
    });
  if (references.length) {
    const who = references.map((curve) => `${curve.method} (reported by ${curve.by})`).join(" and ");
    sentences.push(
      unit === "frames"
        ? `Thin lines: ${who}, evaluations in the training environment with their own settings.`
        : `Published curves of ${references.map((curve) => curve.method).join(" and ")} are over frames; choose frames to see them.`,
    );
  }
  const note = find("curves-note");
  note.hidden = !sentences.length;
  note.textContent = (media.length > 1 ? "These curves are not comparable, being of different media. " : "") + sentences.join(" ");
  if (find("curves-table").closest("details").open) tabulate(drawn, unit);
}

/** The chart's values for people who do not see it: at most ten points. */
function tabulate(series, unit) {
  const grid = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(grid.length / 10));
  const points = grid.filter((_, i) => (grid.length - 1 - i) % step === 0);
  const head = make("tr", {}, make("th", { scope: "col" }, "Method"), points.map((x) => make("th", { scope: "col", class: "number" }, plain(x))));
  const rows = series.map((s) =>
    make("tr", {}, make("th", { scope: "row" }, nameOf(s)), points.map((x) => {
      const found = valueAt(s, x);
      return make("td", { class: "number" }, found ? asReturn(found.y) : "–");
    })),
  );
  find("curves-table").replaceChildren(make("table", {}, make("caption", {}, `Mean return over ${unit}`), make("thead", {}, head), make("tbody", {}, rows)));
}

function drawGap() {
  const box = find("gap-chart");
  if (!box) return;
  const what = find("gap-what").value;
  const series = ofTask(find("gap-task").value)
    .filter((group) => Object.keys(group[what]).length)
    .map((group) => ({ ...group, values: group[what], paper: what === "returns" ? group.paper : null }));
  const rows = data.modes.filter((mode) => series.some((s) => s.values[mode] || (s.paper && s.paper[mode])));
  const kinds = {
    kept: { text: asPercent, tick: asPercent, xTitle: "share of the training return kept", low: 0, high: 1, reference: 1 },
    gap: { text: asReturn, tick: compact, xTitle: "return in train minus return in the mode", low: 0, high: 1, reference: 0 },
    returns: { text: asReturn, tick: compact, xTitle: "return (hollow: the paper's)", low: 0, high: 1, reference: 0 },
  };
  filterRows("gap");
  dotChart(box, series, { ...kinds[what], rows, hidden, changed: redrawAll, label: kinds[what].xTitle });
}

function drawProfile() {
  const box = find("profile-chart");
  if (!box) return;
  const blocks = data.profiles[find("profile-mode").value] || [];
  const block = blocks[Number(find("profile-block").value)] || blocks[0];
  if (!block) return;
  const series = block.lines.map((line) => ({ ...line, x: block.x, spread: null }));
  lineChart(box, series, {
    label: "Performance profile",
    xTitle: "threshold τ of return / 1,000",
    xUnit: "threshold",
    yTitle: "share of runs above τ",
    xText: (x) => plain(x, 2),
    yText: asPercent,
    yTick: asPercent,
    yMax: 1,
    xMax: 1,
    steps: true,
    bare: true,
    hidden,
    changed: redrawAll,
  });
  const counts = [...new Set(block.lines.map((line) => line.runs))].sort((a, b) => a - b);
  const note = find("profile-note");
  note.hidden = false;
  note.textContent =
    `${blockName(block)}: ${block.tasks.join(", ")}; ${counts.join(" or ")} run${counts[counts.length - 1] > 1 ? "s" : ""} a method.` +
    (block.left_out.length ? ` Not run with every method, so left out: ${block.left_out.join(", ")}.` : "");
}

function blockName(block) {
  return `preset ${block.preset}, ${plain(block.decisions)} decisions` + (block.media ? `, ${block.media} media` : "");
}

function fillBlocks() {
  const blocks = data.profiles[find("profile-mode").value] || [];
  const names = blocks.map((block) => blockName(block));
  find("profile-block").replaceChildren(...names.map((name, i) => make("option", { value: i }, name)));
  find("profile-block").closest("label").hidden = blocks.length < 2;
}

/** Draw again; the focus stays on the legend's button that was pressed, which was made anew. */
function redrawAll(pressed) {
  const chart = document.activeElement && document.activeElement.closest(".chart");
  drawCurves();
  drawGap();
  drawProfile();
  if (pressed === undefined || !chart) return;
  [...chart.querySelectorAll(".key")].find((button) => button.dataset.name === pressed)?.focus();
}

function restoreSelect(select) {
  const value = (saved.selects || {})[select.id];
  if ([...select.options].some((option) => option.value === value)) select.value = value;
}

if (find("profile-mode")) {
  find("profile-mode").replaceChildren(...Object.keys(data.profiles).map((mode) => make("option", { value: mode }, mode)));
  restoreSelect(find("profile-mode"));
  fillBlocks();
}
document.querySelectorAll("select").forEach(restoreSelect);
if (find("curves-seeds")) find("curves-seeds").checked = Boolean(saved.seeds);

/** Show a section's rows of one task only; "" shows all. */
function filterRows(part) {
  const task = find(`${part}-task`)?.value;
  if (task === undefined) return;
  for (const cell of document.querySelectorAll(`#${part} [data-task]`)) {
    cell.closest("tr").hidden = task !== "" && cell.dataset.task !== task;
  }
}

// ---- leaderboard -----------------------------------------------------------------------------------------------

/** The rows of one of the two tables, by number. */
const boardRows = (number) => [...(document.querySelectorAll("#board table")[number]?.tBodies[0].rows || [])];

/** Whether a row is wanted, whatever its task. */
function isWanted(row) {
  const origin = find("board-origin").value;
  const words = find("board-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const name = row.cells[0].textContent.toLowerCase();
  return (
    (!origin || row.dataset.origin === origin) &&
    (!find("board-comparable").checked || row.dataset.comparable !== undefined) &&
    words.every((word) => name.includes(word))
  );
}

function filterBoard() {
  if (!find("board-mode")) return;
  const [task, mode] = [find("board-task").value, find("board-mode").value];
  let shown = 0;
  for (const row of boardRows(0)) {
    row.hidden = !((!task || row.dataset.task === task) && (!mode || row.dataset.mode === mode) && isWanted(row));
    shown += !row.hidden;
  }
  const classes = boardRows(0)[0].closest("table").classList;
  classes.toggle("one-task", Boolean(task));
  classes.toggle("one-mode", Boolean(mode));
  find("board-count").textContent = `${shown} of ${boardRows(0).length} numbers`;
  if (find("board-set")) filterOverTasks(mode);
}

/** The second table: the sets of tasks of the mode to choose from, and the rows of the chosen one. */
function filterOverTasks(mode) {
  const select = find("board-set");
  const before = select.value || (saved.selects || {})["board-set"];
  const sets = new Map();
  for (const row of boardRows(1)) {
    if (mode && row.dataset.mode !== mode) continue;
    const text = mode ? row.dataset.tasks : `${row.dataset.mode}: ${row.dataset.tasks}`;
    sets.set(`${row.dataset.mode} ${row.dataset.tasks}`, text);
  }
  select.replaceChildren(...[...sets].map(([value, text]) => make("option", { value }, text)));
  if (sets.has(before)) select.value = before;
  select.closest(".controls").hidden = sets.size < 1;
  find("board-none").hidden = sets.size > 0;
  boardRows(1)[0].closest(".scroll").hidden = sets.size < 1;
  for (const row of boardRows(1)) {
    row.hidden = `${row.dataset.mode} ${row.dataset.tasks}` !== select.value || !isWanted(row);
  }
}

if (find("board-search")) {
  find("board-search").value = saved.search || "";
  find("board-comparable").checked = Boolean(saved.comparable);
  find("board-search").addEventListener("input", filterBoard);
}

const redraws = { results: () => filterRows("results"), board: filterBoard, curves: drawCurves, gap: drawGap, profile: drawProfile };
for (const control of document.querySelectorAll(".controls select, .controls input")) {
  const part = control.id.split("-")[0];
  control.addEventListener("change", () => {
    if (control.id === "profile-mode") fillBlocks();
    if (redraws[part]) redraws[part]();
  });
  const options = control.options;
  if (options && options.length < 2 && control.id !== "board-set") control.closest("label").hidden = true;
}
find("curves-table")?.closest("details").addEventListener("toggle", drawCurves);

let lastWidth = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth === lastWidth) return;
  lastWidth = document.body.clientWidth;
  redrawAll();
}).observe(document.body);

// ---- videos ----------------------------------------------------------------------------------------------------

let urls = [];
const players = () => [...document.querySelectorAll("#videos-row video")];
const playing = () => players().some((video) => !video.paused);

function showVideos() {
  const row = find("videos-row");
  if (!row) return;
  urls.forEach((url) => URL.revokeObjectURL(url));
  const chosen = data.videos[Number(find("videos-run").value)];
  const modes = [...data.modes.filter((mode) => mode in chosen.modes), ...Object.keys(chosen.modes).filter((mode) => !data.modes.includes(mode))];
  urls = modes.map((mode) => {
    const bytes = Uint8Array.from(atob(chosen.modes[mode]), (character) => character.charCodeAt(0));
    return URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
  });
  row.replaceChildren(
    ...modes.map((mode, i) => {
      const video = make("video", { src: urls[i], muted: true, loop: true, playsinline: true, preload: "auto", tabindex: "0", "aria-label": `Episode in ${mode}; Enter plays and pauses it` });
      video.muted = true;
      for (const event of ["play", "pause"]) video.addEventListener(event, showPlaying);
      const toggle = () => (video.paused ? video.play() : video.pause());
      video.addEventListener("click", toggle);
      video.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
      if (i === 0) video.addEventListener("timeupdate", () => (find("videos-time").value = video.currentTime / video.duration));
      const reached = data.groups[chosen.group].returns[mode];
      const small = reached ? make("small", {}, `mean over seeds ${asReturn(reached.mean)} (n = ${reached.n})`) : null;
      return make("figure", {}, video, make("figcaption", {}, mode, small));
    }),
  );
  showPlaying();
}

function showPlaying() {
  find("videos-play").textContent = playing() ? "Pause all" : "Play all";
}

if (data.videos.length) {
  showVideos();
  find("videos-run").addEventListener("change", showVideos);
  find("videos-play").addEventListener("click", () => {
    const pause = playing();
    for (const video of players()) pause ? video.pause() : video.play();
  });
  find("videos-time").addEventListener("input", () => {
    for (const video of players()) video.currentTime = find("videos-time").value * (video.duration || 0);
  });
} else if (find("videos-run")) {
  find("videos-run").closest(".controls").hidden = true;
}

// ---- the state that a reload keeps, and the reload itself ------------------------------------------------------

function keepState() {
  const selects = Object.fromEntries([...document.querySelectorAll("select")].map((select) => [select.id, select.value]));
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const state = { theme, hidden: [...hidden], sorted, tabs: chosenTabs, selects, open, seeds: Boolean(find("curves-seeds")?.checked), search: find("board-search")?.value, comparable: Boolean(find("board-comparable")?.checked), scroll: scrollY, focus: document.activeElement?.id || null, live };
  history.replaceState({ softaug: state }, "");
}

let live = saved.live !== false;
const every = Number(document.body.dataset.reloadSeconds || 0);
if (every) {
  const button = find("live");
  const show = () => {
    button.setAttribute("aria-pressed", String(live));
    button.title = live ? `loads itself again every ${every} s` : "stands still";
  };
  button.addEventListener("click", () => {
    live = !live;
    show();
  });
  show();
  history.scrollRestoration = "manual";
  setInterval(() => {
    const busy = playing() || document.hidden || document.activeElement?.tagName === "SELECT";
    if (!live || busy) return;
    keepState(); // what pagehide would keep comes too late for a reload from inside
    location.reload();
  }, every * 1000);
}
// Chromium forgets what pagehide writes when the page is loaded again; other browsers may not send beforeunload.
addEventListener("beforeunload", keepState);
addEventListener("pagehide", keepState);

showTheme();
filterRows("results");
filterBoard();
redrawAll();
[...document.querySelectorAll("details")].forEach((details, i) => {
  details.open = Boolean((saved.open || [])[i]);
});
if (every && saved.scroll !== undefined) scrollTo({ top: saved.scroll, behavior: "instant" });
if (saved.focus) find(saved.focus)?.focus({ preventScroll: true });
