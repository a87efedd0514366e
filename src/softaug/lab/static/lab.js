// The page: wires the connection, the controls and the agents together. The address always holds every setting.

import { AgentView, decodeImages } from "./agents.js";
import { Connection, parseFrame } from "./connection.js";
import { Controls, element } from "./controls.js";

const $ = (id) => document.getElementById(id);
const given = new URLSearchParams(location.search);
let places = given.get("at") || "";
given.delete("at");
let query = given.toString();
let settings = null; // as the controls show them
let confirmed = null; // as the server said them last
let controls = null;
let agents = [];
let asked = 0; // number of the last request
let webcam = null;
let recording = false;

const connection = new Connection({
  hello: () => {
    // Another session: it counts anew, and knows nothing of a recording or an evaluation of the one before.
    waiting = null;
    asked = 0;
    handlers.recording({ state: "none" });
    if ($("start-test").disabled) handlers.test_stopped();
    for (const name of ["asked", "change", "frame"]) delete document.body.dataset[name];
    return { query, at: places };
  },
  onText: (message) => handlers[message.type]?.(message),
  onFrame: showFrame,
  onState: showState,
});
const send = (message) => connection.send(message);

const handlers = {
  ready(message) {
    $("task").textContent = message.task;
    document.title = `softaug lab: ${message.task}`;
    const canPush = message.controls.includes("push");
    agents = message.agents.map((facts, index) => new AgentView(index, facts, { send, canPush }));
    $("stages").replaceChildren(...agents.map((agent) => agent.stage));
    $("readings").replaceChildren(...agents.map((agent) => agent.reading));
    controls = new Controls({
      schema: message.schema,
      modes: message.modes,
      applicable: message.controls,
      places: { seed: $("seed-place"), speed: $("speed-place") },
      onChange: change,
      onUpload: upload,
    });
    $("results-head").replaceChildren(
      element("th", { scope: "col" }, "Setting"),
      ...message.agents.map((facts) => element("th", { scope: "col" }, facts.name)),
    );
    $("status").textContent = "Running";
    send({ type: "visible", value: !document.hidden });
  },
  settings(message) {
    if (message.number < asked) return; // of before the last request, whose answer follows
    // Where the episode was when the page was opened is over with the first change.
    if (confirmed && JSON.stringify(confirmed) !== JSON.stringify(message.settings)) places = "";
    confirmed = settings = message.settings;
    query = message.query;
    controls.show(settings);
    const at = places ? `${query ? "&" : ""}at=${places}` : "";
    history.replaceState(null, "", query || at ? `?${query}${at}` : location.pathname);
    showPaused();
    useWebcam(settings.background === "webcam");
  },
  error(message) {
    say(message.text);
  },
  async link(message) {
    const at = message.at ? `${message.query ? "&" : ""}at=${message.at}` : "";
    const link = `${location.origin}${location.pathname}?${message.query}${at}`;
    $("link").dataset.link = link;
    try {
      await navigator.clipboard.writeText(link);
      $("linked").textContent = "Copied";
    } catch {
      $("linked").replaceChildren(element("a", { href: link }, "Link to this scene"));
    }
  },
  test(message) {
    $("results").hidden = false;
    $("start-test").disabled = true;
    $("stop-test").hidden = message.done;
    const played = message.returns.reduce((sum, mine) => sum + mine.length, 0);
    const total = message.episodes * message.returns.length;
    $("testing").textContent = message.done ? "Done" : `${played} of ${total} episodes`;
    showResults(message);
    if (message.done) $("start-test").disabled = false;
  },
  test_stopped() {
    $("start-test").disabled = false;
    $("stop-test").hidden = true;
    $("testing").textContent = "Stopped";
    row = null;
  },
  recording(message) {
    if (message.state === "writing") {
      setRecording(false);
      $("recording").textContent = `Writing ${message.frames} frames …`;
    } else if (message.state === "done") {
      const names = { "comparison.mp4": "MP4", "comparison.gif": "GIF", "comparison.json": "JSON" };
      const links = Object.entries(message.files).map(([file, href]) =>
        element("a", { href, download: file, className: "download" }, names[file]));
      $("recording").replaceChildren(`${message.frames} frames: `, ...links);
    } else {
      setRecording(false);
      $("recording").textContent = "";
    }
  },
};

function showPaused() {
  $("pause").textContent = settings.paused ? "Continue" : "Pause";
  $("pause").setAttribute("aria-pressed", settings.paused);
  $("status").textContent = settings.paused ? "Paused" : "Running";
}

// Frames: drawn one at a time, and acknowledged when drawn, so that the server never sends more than can be shown. The
// number of the last request that a frame shows is in the document, next to that of the last request (`asked`).
let drawing = Promise.resolve();
function showFrame(buffer) {
  const header = parseFrame(buffer);
  drawing = drawing.then(async () => {
    const images = await Promise.all(header.agents.map((agent) => decodeImages(agent)));
    header.agents.forEach((agent, index) => agents[index]?.show(agent, images[index]));
    document.body.dataset.frame = header.number;
    document.body.dataset.change = header.change;
    if (header.agents.some((agent) => !agent.pushed)) say("There is no body at this point: drag the robot.", 2500);
  }).catch((error) => {
    console.error("a frame could not be drawn", error); // the next one may well be
  }).finally(() => send({ type: "ack", number: header.number }));
}

function showState(state) {
  const texts = {
    open: "Starting the agents …",
    lost: "The server does not answer. Waiting for it …",
    restarted: "softaug lab was started anew and has another address now.",
    ended: "Stopped",
  };
  $("status").textContent = texts[state];
  document.body.dataset.state = state;
  if (state === "lost") say("The connection to softaug lab is lost. It is tried again every two seconds; your settings stay in the address of this page.");
  if (state === "restarted") {
    say(`softaug lab was started anew, and this page belongs to the old one. Open the address that it printed; to see these settings there, add this to it: ?${query}`);
  }
  if (state === "open") say("");
}

let hiding = 0;
function say(text, milliseconds = 0) {
  clearTimeout(hiding);
  if ($("message").textContent !== text) $("message").textContent = text;
  $("message").hidden = !text;
  if (milliseconds) hiding = setTimeout(() => say(""), milliseconds);
}

// Requests change what is shown. Changes of settings: at most one per animation frame.
let waiting = null;
function request(type) {
  sendChanges();
  send({ type, number: nextNumber() });
}

function nextNumber() {
  asked += 1;
  document.body.dataset.asked = asked;
  return asked;
}

function sendChanges() {
  if (waiting) send({ type: "change", ...waiting });
  waiting = null;
}

function change(more) {
  say("");
  if (more.background === "upload" && !more.upload && !settings.upload) {
    controls.show(settings);
    $("set-upload").click();
    return;
  }
  if (settings) {
    settings = { ...settings, ...more };
    showPaused();
  }
  if (!waiting) {
    waiting = { changes: {}, number: nextNumber() };
    requestAnimationFrame(sendChanges);
  }
  Object.assign(waiting.changes, more);
}

async function upload(file) {
  say(`Uploading ${file.name} …`);
  try {
    const answer = await fetch("upload", { method: "POST", headers: { "content-type": file.type }, body: file });
    const result = await answer.json();
    if (!answer.ok) throw new Error(result.error);
    say("");
    change({ upload: result.upload, background: "upload" });
  } catch (error) {
    say(error.message === "Failed to fetch" ? "The file is too large, or the server is gone." : error.message);
  }
}

// The webcam: small JPEG images, ten a second, as long as it is the background.
const WEBCAM_SIZE = 192;
async function useWebcam(on) {
  if (on && !webcam) {
    webcam = { timer: 0, stream: null };
    const mine = webcam;
    const video = element("video", { muted: true, playsInline: true });
    try {
      mine.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 320, height: 240 } });
      video.srcObject = mine.stream;
      await video.play();
    } catch (error) {
      if (webcam === mine) {
        webcam = null;
        say(`The webcam cannot be used (${error.name}).`);
        change({ background: "none" });
      }
      return stop(mine);
    }
    if (webcam !== mine) return stop(mine); // switched off meanwhile
    const canvas = element("canvas", { width: WEBCAM_SIZE, height: WEBCAM_SIZE });
    mine.timer = setInterval(() => {
      if (document.hidden) return;
      const side = Math.min(video.videoWidth, video.videoHeight);
      const [left, top] = [(video.videoWidth - side) / 2, (video.videoHeight - side) / 2];
      canvas.getContext("2d").drawImage(video, left, top, side, side, 0, 0, WEBCAM_SIZE, WEBCAM_SIZE);
      canvas.toBlob(async (blob) => { if (blob) connection.sendBytes(await blob.arrayBuffer()); }, "image/jpeg", 0.8);
    }, 100);
  } else if (!on && webcam) {
    stop(webcam);
    webcam = null;
  }
}

function stop(camera) {
  clearInterval(camera.timer);
  camera.stream?.getTracks().forEach((track) => track.stop());
}

// Results of evaluations, one row each.
let row = null;
function showResults(message) {
  if (!row) {
    row = element("tr", {}, element("th", { scope: "row" }), ...message.mean.map(() => element("td")));
    $("results-body").prepend(row);
  }
  const settings = [...new URLSearchParams(message.query)].map(([name, value]) => `${name} ${value}`);
  row.cells[0].textContent = settings.join(", ").replaceAll("_", " ") || "training appearance";
  message.mean.forEach((mean, index) => {
    const error = message.standard_error[index];
    row.cells[index + 1].textContent = mean === null ? "…" : `${mean.toFixed(0)}${error === null ? "" : ` ± ${error.toFixed(0)}`}`;
  });
  if (message.done) row = null;
}

function setRecording(on) {
  recording = on;
  $("record").textContent = on ? "Stop recording" : "Record";
  $("record").setAttribute("aria-pressed", on);
}

const actions = {
  pause: () => change({ paused: !settings?.paused }),
  step: () => request("step"),
  reset: () => request("reset"),
  surprise: () => request("surprise"),
  plain: () => request("plain"),
};
for (const [id, act] of Object.entries(actions)) $(id).onclick = act;
$("record").onclick = () => {
  setRecording(!recording);
  $("recording").textContent = recording ? "Recording …" : "";
  send({ type: "record", value: recording });
};
$("link").onclick = () => send({ type: "link" });
$("test").onsubmit = (event) => {
  event.preventDefault();
  $("testing").textContent = "Starting …";
  $("start-test").disabled = true;
  $("stop-test").hidden = false;
  send({ type: "test", episodes: Number($("episodes").value) });
};
$("stop-test").onclick = () => send({ type: "stop_test" });

const KEYS = { p: "pause", s: "step", r: "reset", x: "surprise", t: "plain" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const name = KEYS[event.key.toLowerCase()];
  if (name && settings) actions[name]();
});
document.addEventListener("visibilitychange", () => send({ type: "visible", value: !document.hidden }));

// Light and dark: as the system says, or as chosen here.
const dark = matchMedia("(prefers-color-scheme: dark)");
function showTheme() {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : dark.matches;
  $("theme").textContent = isDark ? "Light" : "Dark";
  return isDark;
}
$("theme").onclick = () => {
  document.documentElement.dataset.theme = showTheme() ? "light" : "dark";
  showTheme();
};
dark.onchange = showTheme;
showTheme();
