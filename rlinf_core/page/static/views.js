// Drawings: cameras, the tool in its box from above and from the side, curves. On canvases, for machines without a GPU.
const TRAIL = 120;
const style = name => getComputedStyle(document.body).getPropertyValue(name).trim();
const palette = () => Object.fromEntries(["--box", "--line-strong", "--soft", "--font", "--tone", "--good", "--warm", "--accent"].map(name => [name, style(name)]));

function surface(canvas) {
  const scale = devicePixelRatio || 1, {clientWidth: width, clientHeight: height} = canvas;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

export class Cameras {
  // drawn: called for each frame; align: for a camera that is to be compared with what it saw before.
  constructor(section, drawn, align) { Object.assign(this, {section, drawn, align, shown: []}); }

  // names: of the pictures; aligned: those that can be compared with a reference.
  fit(names, aligned = names) {
    document.body.classList.toggle("blind", !names.length);
    this.section.style.setProperty("--cameras", names.length);
    this.section.replaceChildren(...names.map((name, place) => {
      const figure = document.createElement("figure"), canvas = document.createElement("canvas");
      const caption = Object.assign(document.createElement("figcaption"), {textContent: name});
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `live picture: ${name}`);
      figure.dataset.camera = name;
      const button = Object.assign(document.createElement("button"), {textContent: "Align", onclick: () => this.align(figure, place)});
      button.title = `Has ${name} moved?`;
      button.setAttribute("aria-label", `Align camera ${name}`);
      figure.append(canvas, ...(aligned.includes(name) ? [button] : []), caption);
      return figure;
    }));
    this.shown = names.map((_, place) => ({figure: this.section.children[place], times: []}));
  }

  async draw(bytes) {
    const camera = this.shown[new Uint8Array(bytes, 0, 1)[0]];
    try {
      const picture = await createImageBitmap(new Blob([new Uint8Array(bytes, 1)], {type: "image/jpeg"}));
      const canvas = camera.figure.firstChild;
      if (canvas.width !== picture.width) Object.assign(canvas, {width: picture.width, height: picture.height});
      canvas.getContext("2d").drawImage(picture, 0, 0);
      picture.close();
      camera.times = [...camera.times.slice(-59), performance.now()];
    } finally {
      this.drawn();
    }
  }

  // Once a second: how many a second are drawn, and whether one stands still.
  look() {
    for (const {figure, times} of this.shown) {
      const lately = times.filter(time => performance.now() - time < 2000).length / 2;
      figure.classList.toggle("still", !lately);
      figure.lastChild.textContent = `${figure.dataset.camera} · ${lately ? `${Math.round(lately)} fps` : "no picture"}`;
      figure.dataset.fps = lately;
      const text = `live picture: ${figure.dataset.camera}${lately ? "" : ", no picture comes"}`;
      if (figure.firstChild.ariaLabel !== text) figure.firstChild.setAttribute("aria-label", text);
    }
  }
}

export class Box {
  constructor(canvas) { Object.assign(this, {canvas, boxes: [], trails: [], said: ""}); }

  fit(boxes) { this.boxes = boxes; this.trails = boxes.map(() => []); }

  draw(arms) {
    const said = JSON.stringify(arms.map(arm => [arm.pose, arm.target, arm.object, arm.goal])) + this.canvas.clientWidth + style("--ink");
    if (said === this.said) return;
    this.said = said;
    this.colours = palette();
    this.describe(arms);
    const [pen, width, height] = surface(this.canvas), wide = width / (2 * this.boxes.length);
    this.boxes.forEach((box, place) => {
      const [x, y, z] = arms[place].pose, trail = this.trails[place];
      if (x !== undefined) trail.push([x, y, z]);
      if (trail.length > TRAIL) trail.shift();
      const left = 2 * wide * place, name = box.arm ? `${box.arm}: ` : "";
      this.view(pen, [left, wide, height], `${name}from above`, box, trail, [1, -1], [0, 1], arms[place]);   // y to the left, x up
      this.view(pen, [left + wide, wide, height], `${name}from the right`, box, trail, [0, 1], [2, 1], arms[place]);  // x to the right, z up
    });
  }

  // For those who see no drawing; a whole centimetre, so that it changes seldom.
  describe(arms) {
    const at = point => point?.length ? point.slice(0, 3).map(value => `${Math.round(value * 100)}`).join(", ") + " cm" : "unknown";
    const text = arms.map(arm => `${arm.name || "tool"} at ${at(arm.pose)}` + (arm.target?.length ? `, set-point ${at(arm.target)}` : "")
      + (arm.object?.length ? `, object ${at(arm.object)}` : "") + (arm.goal?.length ? `, goal ${at(arm.goal)}` : "")).join("; ");
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text || "the tool in its workspace");
  }

  // The goal as a ring, the object as a square, the set-point as a cross.
  marks(pen, at, arm, colours) {
    pen.lineWidth = 2.5;
    pen.strokeStyle = colours["--good"];
    if (arm.goal?.length) { pen.beginPath(); pen.arc(...at(arm.goal), 9, 0, 7); pen.stroke(); }
    pen.fillStyle = colours["--warm"];
    if (arm.object?.length) { const [x, y] = at(arm.object); pen.fillRect(x - 6, y - 6, 12, 12); }
    if (!arm.target?.length) return;
    const [x, y] = at(arm.target);
    pen.strokeStyle = colours["--accent"];
    pen.beginPath();
    for (const [dx, dy] of [[11, 0], [0, 11]]) { pen.moveTo(x - dx, y - dy); pen.lineTo(x + dx, y + dy); }
    pen.stroke();
  }

  // Under both views: which mark is which, of those that are drawn.
  legend(pen, x, y, arm, colours) {
    const parts = [["●", "tool", "--tone"], ...(arm.target?.length ? [["+", "set-point", "--accent"]] : []),
      ...(arm.object?.length ? [["■", "object", "--warm"]] : []), ...(arm.goal?.length ? [["○", "goal", "--good"]] : [])];
    pen.textAlign = "left";
    for (const [mark, word, colour] of parts) {
      pen.fillStyle = colours[colour];
      pen.fillText(mark, x, y);
      pen.fillStyle = colours["--soft"];
      pen.fillText(word, x + 13, y);
      x += 22 + pen.measureText(word).width;
    }
    pen.textAlign = "center";
  }

  view(pen, [left, wide, height], title, box, trail, [across, flip], [up], arm) {
    const margin = 22, low = box.low, high = box.high, span = axis => high[axis] - low[axis];
    const scale = Math.min((wide - 2 * margin) / span(across), (height - 2 * margin - 32) / span(up));
    const w = span(across) * scale, h = span(up) * scale, x0 = left + (wide - w) / 2, y0 = (height - h) / 2 - 4;
    const at = point => [flip > 0 ? x0 + (point[across] - low[across]) * scale : x0 + (high[across] - point[across]) * scale,
                         y0 + (high[up] - point[up]) * scale];
    pen.fillStyle = this.colours["--box"];
    pen.strokeStyle = this.colours["--line-strong"];
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.roundRect(x0, y0, w, h, 6);
    pen.fill();
    pen.stroke();
    pen.fillStyle = this.colours["--soft"];
    pen.font = `13px ${this.colours["--font"]}`;
    pen.textAlign = "center";
    pen.fillText(title, left + wide / 2, y0 - 9);
    if (across === 1) this.legend(pen, left + 6, height - 6, arm, this.colours);
    this.marks(pen, at, arm, this.colours);
    const last = trail[trail.length - 1];
    if (!last) return;
    const tone = this.colours["--tone"];
    pen.lineWidth = 2.5;
    pen.lineCap = "round";
    trail.slice(1).forEach((point, place) => {
      pen.globalAlpha = 0.6 * (place + 1) / trail.length;
      pen.strokeStyle = tone;
      pen.beginPath();
      pen.moveTo(...at(trail[place]));
      pen.lineTo(...at(point));
      pen.stroke();
    });
    pen.globalAlpha = 0.18;
    pen.fillStyle = tone;
    const [px, py] = at(last);
    for (const radius of [15, 7]) {
      pen.beginPath();
      pen.arc(px, py, radius, 0, 7);
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.fillStyle = this.colours["--soft"];
    const mm = axis => `${"xyz"[axis]} ${Math.round(last[axis] * 1000)}`;
    pen.fillText(`${mm(across)}   ${mm(up)} mm`, left + wide / 2, y0 + h + 19);
  }
}

export function curve(canvas, values) {
  const [pen, width, height] = surface(canvas), at = place => [
    values.length > 1 ? 3 + place * (width - 6) / (values.length - 1) : width - 3, height - 3 - values[place] * (height - 6)];
  pen.strokeStyle = style("--line");
  for (const share of [0, 0.5, 1]) {
    pen.beginPath();
    pen.moveTo(0, height - 3 - share * (height - 6));
    pen.lineTo(width, height - 3 - share * (height - 6));
    pen.stroke();
  }
  if (!values.length) return;
  pen.strokeStyle = style(canvas.dataset.curve === "success" ? "--good" : "--warm");
  pen.lineWidth = 2.5;
  pen.lineJoin = "round";
  pen.beginPath();
  values.forEach((_, place) => pen[place ? "lineTo" : "moveTo"](...at(place)));
  pen.stroke();
  pen.fillStyle = pen.strokeStyle;
  pen.beginPath();
  pen.arc(...at(values.length - 1), 3.5, 0, 7);
  pen.fill();
}
