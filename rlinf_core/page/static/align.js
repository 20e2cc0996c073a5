// The picture of before over the live one, and by how much the camera has moved since. It commands nothing.
const EVERY_MS = 1000, STRONG = 0.3;

// A drawing of where its brightness changes, clear elsewhere.
function edges(picture) {
  const canvas = Object.assign(document.createElement("canvas"), {width: picture.width, height: picture.height});
  const pen = canvas.getContext("2d"), {width, height} = canvas;
  pen.drawImage(picture, 0, 0);
  const seen = pen.getImageData(0, 0, width, height);
  const grey = new Float32Array(width * height), strength = new Float32Array(width * height);
  for (let at = 0; at < grey.length; at++) grey[at] = seen.data[4 * at] + seen.data[4 * at + 1] + seen.data[4 * at + 2];
  for (let y = 1; y < height - 1; y++) {
    for (let x = 1; x < width - 1; x++) {
      const at = y * width + x;
      strength[at] = Math.hypot(grey[at + 1] - grey[at - 1], grey[at + width] - grey[at - width]);
    }
  }
  const most = strength.reduce((a, b) => Math.max(a, b), 1);
  strength.forEach((value, at) => seen.data.set([255, 0, 200, Math.min(255, 255 * value / (STRONG * most))], 4 * at));
  pen.putImageData(seen, 0, 0);
  return canvas;
}

export class Alignment {
  // panel: with data-way on each of its buttons, an input, and an output.
  constructor(panel, views) {
    Object.assign(this, {panel, views, figure: null, place: -1, way: "blend", reference: null, asking: false});
    this.before = Object.assign(document.createElement("canvas"), {className: "before"});
    this.ways = panel.querySelectorAll("[data-way]");
    for (const button of this.ways) button.onclick = () => { this.way = button.dataset.way; this.draw(); };
    panel.querySelector("input").oninput = () => this.draw();
    panel.querySelector("#aligned").onclick = () => this.close();
    setInterval(() => this.look(), EVERY_MS);
  }

  open(figure, place) {
    this.close();
    Object.assign(this, {figure, place});
    figure.classList.add("only");
    this.views.classList.add("aligning");
    this.panel.hidden = false;
    this.say("", "");
    this.draw();
    this.look();
  }

  async load(place) {
    const picture = await createImageBitmap(await (await fetch(`/reference/${place}`)).blob());
    if (this.place !== place) return;
    this.reference = {blend: picture, flicker: picture, edges: edges(picture)};
    this.figure.insertBefore(this.before, this.figure.querySelector("figcaption"));
    this.draw();
  }

  close() {
    this.figure?.classList.remove("only");
    this.before.remove();
    this.views.classList.remove("aligning");
    this.panel.hidden = true;
    Object.assign(this, {figure: null, place: -1, reference: null});
  }

  draw() {
    for (const button of this.ways) button.classList.toggle("chosen", button.dataset.way === this.way);
    this.before.style.opacity = this.panel.querySelector("input").value / 100;
    this.before.classList.toggle("flicker", this.way === "flicker");
    if (!this.reference) return;
    const {width, height} = this.reference.blend;
    Object.assign(this.before, {width, height});  // which clears it
    this.before.getContext("2d").drawImage(this.reference[this.way], 0, 0);
  }

  say(words, shift, aligned = false) {
    this.panel.querySelector("output").textContent = words;
    this.panel.querySelector("#shift").textContent = shift;
    this.panel.classList.toggle("well", aligned);
  }

  // How far it is off, by the station's own measure.
  async look() {
    const {place} = this;
    if (place < 0 || this.asking || document.hidden) return;
    if (this.figure.classList.contains("still")) return this.say("This camera shows nothing now.", "");
    this.asking = true;
    try {
      const said = await (await fetch(`/alignment/${place}`, {signal: AbortSignal.timeout(5000)})).json();
      if (this.place !== place) return;
      const shift = said.right === undefined ? ""
        : `${signed(said.right)} px →   ${signed(said.down)} px ↓   ${signed(said.turned * 180 / Math.PI)}° ↻`;
      this.say(said.words, shift, said.aligned);
      if (said.alike !== undefined && !this.reference) await this.load(place);
    } catch {
      if (this.place === place) this.say("Not measured: the page is not connected.", "");
    } finally {
      this.asking = false;
    }
  }
}

const signed = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
