// The agents' images and numbers, and pushing them with the pointer or the arrow keys.

import { element } from "./controls.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const KEY_PUSH = 0.3;
const MAX_DRAG = 1;

export class AgentView {
  constructor(index, facts, { send, canPush }) {
    Object.assign(this, { index, send });
    this.scene = element("canvas", { width: 320, height: 320, id: `scene-${index}` });
    this.scene.setAttribute("role", "img");
    this.scene.setAttribute("aria-label", `Scene of ${facts.name}`);
    this.arrow = element("canvas", { width: 320, height: 320, className: "arrow" });
    this.arrow.setAttribute("aria-hidden", "true");
    this.name = element("h3", { id: `agent-${index}` }, facts.name);
    this.total = element("output", { className: "total", id: `return-${index}` }, "–");
    this.stage = element(
      "article", { className: `stage tone-${index}` },
      element("div", { className: "title" }, this.name, element("span", {}, "return ", this.total)),
      element("div", { className: "frame" }, this.scene, this.arrow),
    );
    this.stage.setAttribute("aria-labelledby", `agent-${index}`);
    this.seen = element("canvas", { width: facts.seen, height: facts.seen, className: "seen", id: `seen-${index}` });
    this.seen.setAttribute("role", "img");
    this.seen.setAttribute("aria-label", `What ${facts.name} sees`);
    this.numbers = element("dl", { className: "numbers" });
    this.values = {};
    for (const [key, label] of [["reward", "Reward"], ["decisions", "Decision"]]) {
      this.values[key] = element("dd", {}, "–");
      this.numbers.append(element("div", {}, element("dt", {}, label), this.values[key]));
    }
    this.features = new DistanceBar("Features");
    this.actions = new DistanceBar("Actions");
    this.bars = element("div", { className: "actions", role: "img" });
    this.fills = Array.from({ length: facts.actions }, () => element("i"));
    this.bars.append(...this.fills.map((fill) => element("span", {}, fill)));
    this.reading = element(
      "section", { className: `reading tone-${index}` },
      element("p", { className: "facts" }, facts.facts),
      element(
        "div", { className: "side" },
        element("figure", {}, this.seen, element("figcaption", {}, `What it sees, ${facts.seen}\u00a0×\u00a0${facts.seen}`)),
        element(
          "div", {},
          this.numbers,
          element("p", { className: "what" }, "Moved by the appearance"),
          this.features.row, this.actions.row,
          element("p", { className: "what" }, "Action"), this.bars,
        ),
      ),
    );
    this.reading.setAttribute("aria-label", `Numbers of ${facts.name}`);
    if (canPush) this.listen(facts.name);
  }

  show(agent, { scene, seen }) {
    draw(this.scene, scene);
    draw(this.seen, seen);
    this.total.textContent = agent.return.toFixed(0);
    this.values.reward.textContent = agent.reward.toFixed(2);
    this.values.decisions.textContent = agent.over ? `${agent.decisions}, over` : agent.decisions;
    const distances = agent.distances;
    this.features.show(distances && distances.features, distances && distances.relative_features);
    this.actions.show(distances && distances.actions, distances && distances.relative_actions);
    this.fills.forEach((fill, index) => {
      const value = Math.max(-1, Math.min(1, agent.action[index]));
      fill.style.setProperty("--low", `${50 + 50 * Math.min(0, value)}%`);
      fill.style.setProperty("--size", `${50 * Math.abs(value)}%`);
    });
    this.bars.setAttribute("aria-label", `Action ${agent.action.map((value) => value.toFixed(1)).join(", ")}`);
    this.stage.dataset.hash = agent.hash;
    this.stage.dataset.decisions = agent.decisions;
  }

  // Pushing: the force follows the drag until the pointer is released.
  listen(name) {
    const canvas = this.scene;
    canvas.tabIndex = 0;
    canvas.classList.add("pushable");
    canvas.setAttribute("aria-label", `Scene of ${name}. Arrow keys push the body.`);
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    canvas.onpointerdown = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.from = point(event);
      this.push(0, 0);
    };
    canvas.onpointermove = (event) => {
      if (!this.from) return;
      const [x, y] = point(event);
      this.push(limit(x - this.from[0]), limit(y - this.from[1]));
    };
    canvas.onpointerup = canvas.onpointercancel = () => {
      if (!this.from) return;
      this.from = null;
      // A click is short: let its mark be seen. The push lasts for one decision at least.
      setTimeout(() => this.release(), 150);
    };
    canvas.onkeydown = (event) => {
      const arrow = ARROWS[event.key];
      if (!arrow) return;
      event.preventDefault();
      this.send({ type: "push", agent: this.index, middle: true, dx: KEY_PUSH * arrow[0], dy: KEY_PUSH * arrow[1] });
      this.drawArrow([0.5, 0.5], KEY_PUSH * arrow[0], KEY_PUSH * arrow[1]);
    };
    canvas.onkeyup = (event) => { if (ARROWS[event.key]) this.release(); };
    canvas.onblur = () => this.release();
  }

  push(dx, dy) {
    this.send({ type: "push", agent: this.index, x: this.from[0], y: this.from[1], dx, dy });
    this.drawArrow(this.from, dx, dy);
  }

  release() {
    if (this.from) return;
    this.send({ type: "release", agent: this.index });
    this.arrow.getContext("2d").clearRect(0, 0, this.arrow.width, this.arrow.height);
  }

  drawArrow([x, y], dx, dy) {
    const pen = this.arrow.getContext("2d");
    const size = this.arrow.width;
    pen.clearRect(0, 0, size, size);
    const [fromX, fromY, toX, toY] = [x, y, x + dx, y + dy].map((value) => value * size);
    const angle = Math.atan2(toY - fromY, toX - fromX);
    for (const [color, width] of [["#000a", 7], ["#ffd23e", 4]]) {
      pen.strokeStyle = color;
      pen.lineWidth = width;
      pen.lineCap = "round";
      pen.beginPath();
      pen.arc(fromX, fromY, 5, 0, 2 * Math.PI);
      pen.moveTo(fromX, fromY);
      pen.lineTo(toX, toY);
      if (Math.hypot(toX - fromX, toY - fromY) > 8) {
        for (const turn of [2.6, -2.6]) {
          pen.moveTo(toX, toY);
          pen.lineTo(toX + 14 * Math.cos(angle + turn), toY + 14 * Math.sin(angle + turn));
        }
      }
      pen.stroke();
    }
  }
}

// How far the appearance moves the network: 1 is as far as another state would.
class DistanceBar {
  constructor(label) {
    this.fill = element("i");
    this.value = element("output", {}, "–");
    this.row = element(
      "div", { className: "distance" },
      element("span", {}, label), element("span", { className: "track", "aria-hidden": "true" }, this.fill), this.value,
    );
    this.row.title = "0: as in the training appearance; 1: as far away as another state";
  }

  show(distance, relative) {
    const known = typeof distance === "number";
    const shown = typeof relative === "number" ? relative : distance;
    this.value.textContent = known ? shown.toFixed(2) : "–";
    this.fill.style.setProperty("--size", known ? `${100 * Math.min(1, shown)}%` : "0%");
    this.row.classList.toggle("far", known && shown >= 0.6);
  }
}

// To be drawn by `show`, when those of all agents are there.
export async function decodeImages(agent) {
  const [scene, seen] = await Promise.all([createImageBitmap(agent.scene), createImageBitmap(agent.seen)]);
  return { scene, seen };
}

function draw(canvas, image) {
  if (canvas.width !== image.width || canvas.height !== image.height) {
    canvas.width = image.width;
    canvas.height = image.height;
  }
  canvas.getContext("2d").drawImage(image, 0, 0);
  image.close();
}

function limit(value) {
  return Math.max(-MAX_DRAG, Math.min(MAX_DRAG, value));
}
