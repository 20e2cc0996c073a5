// Drawings: cameras, the tool in its box from above and from the side, curves. On canvases, for machines without a GPU.
const TRAIL = 120;
const style = name => getComputedStyle(document.body).getPropertyValue(name).trim();
const palette = () => Object.fromEntries(["--box", "--line-strong", "--soft", "--font", "--tone"].map(name => [name, style(name)]));

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

  fit(names) {
    document.body.classList.toggle("blind", !names.length);
    this.section.style.setProperty("--cameras", names.length);
    this.section.replaceChildren(...names.map((name, place) => {
      const figure = document.createElement("figure"), canvas = document.createElement("canvas");
      const caption = Object.assign(document.createElement("figcaption"), {textContent: name});
      figure.dataset.camera = name;
      const button = Object.assign(document.createElement("button"), {textContent: "Align", onclick: () => this.align(figure, place)});
      button.title = `Is ${name} where it was?`;
      figure.append(canvas, button, caption);
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
    }
  }
}

export class Box {
  constructor(canvas) { Object.assign(this, {canvas, boxes: [], trails: [], said: ""}); }

  fit(boxes) { this.boxes = boxes; this.trails = boxes.map(() => []); }

  draw(arms) {
    const said = JSON.stringify(arms.map(arm => arm.pose)) + this.canvas.clientWidth + style("--ink");
    if (said === this.said) return;
    this.said = said;
    this.colours = palette();
    const [pen, width, height] = surface(this.canvas), wide = width / (2 * this.boxes.length);
    this.boxes.forEach((box, place) => {
      const [x, y, z] = arms[place].pose, trail = this.trails[place];
      if (x !== undefined) trail.push([x, y, z]);
      if (trail.length > TRAIL) trail.shift();
      const left = 2 * wide * place, name = box.arm ? `${box.arm}: ` : "";
      this.view(pen, [left, wide, height], `${name}from above`, box, trail, [1, -1], [0, 1]);   // y to the left, x up
      this.view(pen, [left + wide, wide, height], `${name}from the right`, box, trail, [0, 1], [2, 1]);  // x to the right, z up
    });
  }

  view(pen, [left, wide, height], title, box, trail, [across, flip], [up]) {
    const margin = 22, low = box.low, high = box.high, span = axis => high[axis] - low[axis];
    const scale = Math.min((wide - 2 * margin) / span(across), (height - 2 * margin - 14) / span(up));
    const w = span(across) * scale, h = span(up) * scale, x0 = left + (wide - w) / 2, y0 = (height - h) / 2 + 6;
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
