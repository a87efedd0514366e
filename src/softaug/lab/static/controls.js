// Builds the controls from the server's list of settings and keeps them in step with it.

const GROUPS_OPEN = ["World", "Colors", "Background", "Agents"];
const OWN_COLORS = { floor: "#1a334d", sky: "#6699cc", body: "#b3804d" };

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function sentence(name) {
  return name.replaceAll("_", " ");
}

export class Controls {
  // onChange(changes): the user has changed these settings. onUpload(file): has chosen a file.
  constructor({ schema, modes, applicable, places, onChange, onUpload }) {
    Object.assign(this, { modes, onChange, onUpload });
    this.fields = new Map();
    this.groups = new Map();
    const form = document.getElementById("fields");
    form.replaceChildren();
    form.onsubmit = (event) => event.preventDefault();
    for (const facts of schema) {
      if (!applicable.includes(facts.name) || facts.name === "paused") continue;
      const field = this.build(facts);
      this.fields.set(facts.name, field);
      if (places[facts.name]) places[facts.name].replaceChildren(...field.parts);
      else this.group(form, facts.group).append(field.row);
    }
  }

  group(form, name) {
    if (!this.groups.has(name)) {
      const body = element("div", { className: "rows" });
      const details = element("details", { open: GROUPS_OPEN.includes(name) }, element("summary", {}, name), body);
      form.append(details);
      this.groups.set(name, body);
    }
    return this.groups.get(name);
  }

  build(facts) {
    const id = `set-${facts.name}`;
    const label = element("label", { htmlFor: id }, facts.label);
    const field = { facts, parts: [label], set: () => {} };
    const tell = (value) => this.onChange({ [facts.name]: value });
    if (facts.kind === "range") {
      const output = element("output", { htmlFor: id, id: `${id}-value` });
      const input = element("input", { type: "range", id, min: facts.min, max: facts.max, step: facts.step });
      field.set = (value) => {
        if (document.activeElement !== input || !input.matches(":active")) input.value = value;
        output.textContent = `${Number(value).toFixed(decimals(facts.step))}${facts.unit}`;
        input.setAttribute("aria-valuetext", output.textContent);
      };
      input.oninput = () => {
        field.set(input.value);
        tell(Number(input.value));
      };
      input.ondblclick = () => tell(facts.default);
      field.parts.push(input, output);
    } else if (facts.kind === "number") {
      const input = element("input", { type: "number", id, min: facts.min, max: facts.max, step: facts.step });
      field.set = (value) => { if (document.activeElement !== input) input.value = value; };
      input.onchange = () => {
        if (input.checkValidity() && input.value !== "") tell(Number(input.value));
        else input.reportValidity();
      };
      field.parts.push(input);
    } else if (facts.kind === "select" || facts.kind === "mode") {
      const choices = facts.kind === "mode" ? this.modes.map((mode) => [mode, sentence(mode)]) : Object.entries(facts.choices);
      const select = element("select", { id }, ...choices.map(([value, text]) => element("option", { value }, text)));
      field.set = (value) => {
        if (![...select.options].some((option) => option.value === value)) select.append(element("option", { value }, value));
        select.value = value;
      };
      select.onchange = () => tell(select.value);
      field.parts.push(select);
    } else if (facts.kind === "switch") {
      const input = element("input", { type: "checkbox", id });
      field.set = (value) => { input.checked = value; };
      input.onchange = () => tell(input.checked);
      field.parts = [input, label];
    } else if (facts.kind === "color") {
      const input = element("input", { type: "color", id });
      const clear = element("button", { type: "button", "aria-label": `${facts.label}: the scene's own color` }, "own");
      field.set = (value) => {
        if (!input.matches(":active")) input.value = value || OWN_COLORS[facts.name] || "#888888";
        clear.disabled = value === "";
      };
      input.oninput = () => tell(input.value);
      clear.onclick = () => tell("");
      field.parts.push(input, clear);
    } else if (facts.kind === "upload") {
      const kinds = "image/png,image/jpeg,image/webp,video/mp4,video/webm,video/quicktime,video/x-matroska";
      const input = element("input", { type: "file", id, accept: kinds });
      input.onchange = () => { if (input.files.length) this.onUpload(input.files[0]); };
      field.parts.push(input);
    }
    field.row = element("div", { className: `row ${facts.kind}` }, ...field.parts);
    return field;
  }

  show(settings) {
    for (const [name, field] of this.fields) field.set(settings[name]);
    this.enable("video", ["easy", "hard"].includes(settings.background));
    for (const name of ["opacity", "hide_floor"]) this.enable(name, settings.background !== "none");
  }

  enable(name, on) {
    const field = this.fields.get(name);
    if (field) for (const part of field.parts) if ("disabled" in part) part.disabled = !on;
  }
}

function decimals(step) {
  return step >= 1 ? 0 : step >= 0.1 ? 1 : 2;
}
