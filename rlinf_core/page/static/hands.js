// What is held: keys, pads and buttons. It only reports; what that means is decided by the station.
// Whatever takes the hand away without a release (focus, tab, touch) ends the reports, and the station holds the arm.
const KEYS = {KeyW: ["x", 1], KeyS: ["x", -1], KeyA: ["y", 1], KeyD: ["y", -1], KeyR: ["z", 1], KeyF: ["z", -1],
  KeyL: ["rx", 1], KeyJ: ["rx", -1], KeyI: ["ry", 1], KeyK: ["ry", -1], KeyU: ["rz", 1], KeyO: ["rz", -1],
  KeyV: ["grip", 1], KeyC: ["grip", -1], ShiftLeft: ["", 0], ShiftRight: ["", 0]};
const EVERY_MS = 50, REST_MS = 150, SLIP = 10;

export class Hands {
  constructor(link, lost) {
    Object.assign(this, {link, lost, held: new Map(), active: false, seq: 0, axes: new Set(), mine: false, keysOn: true});
    addEventListener("keydown", event => this.key(event, true));
    addEventListener("keyup", event => this.key(event, false));
    for (const kind of ["pointerdown", "pointermove", "keydown"]) addEventListener(kind, () => { this.active = true; });
    addEventListener("blur", () => this.cut("the window lost the focus"));
    addEventListener("pagehide", () => this.cut("the page was left"));
    document.addEventListener("visibilitychange", () => document.hidden && this.cut("the tab was hidden"));
    for (const pad of document.querySelectorAll(".pad")) this.pad(pad);
    for (const button of document.querySelectorAll("[data-hold]")) this.button(button);
    setInterval(() => this.report(), EVERY_MS);
  }

  // Of this task; others are not shown.
  fit(axes) {
    this.axes = new Set(axes);
    const known = name => this.axes.has(name.replace(/[-+]/, ""));
    for (const pad of document.querySelectorAll(".pad")) pad.hidden = !known(pad.dataset.x) && !known(pad.dataset.y);
    for (const button of document.querySelectorAll("[data-hold^=grip]")) button.hidden = !this.axes.has("grip");
    document.querySelector(".turns").hidden = !known("rx") && !known("ry") && !known("rz");
  }

  key(event, down) {
    if (down && event.key === "Meta") this.cut("the system's key is held");  // no release is told of what is held with it
    if (!(event.code in KEYS) || (down && (!this.keysOn || event.ctrlKey || event.altKey || event.metaKey))) return;
    event.preventDefault();
    if (event.repeat) return;
    const [axis, way] = KEYS[event.code];
    this.hold(event.code, down && axis ? {[axis]: way} : {}, down);
  }

  // Its beginning and its end are said at once; how it moves meanwhile, with the next of 20 words a second.
  hold(what, moves, down) {
    const changes = down !== this.held.has(what);
    if (down && this.mine) this.held.set(what, moves);
    else this.held.delete(what);
    this.active = true;
    if (changes) this.report();
  }

  pad(pad) {
    const knob = pad.querySelector("i");
    const say = event => {
      const at = pad.getBoundingClientRect(), part = value => Math.max(-1, Math.min(1, value));
      const x = part(2 * (event.clientX - at.left) / at.width - 1), y = part(1 - 2 * (event.clientY - at.top) / at.height);
      knob.style.setProperty("--x", x);
      knob.style.setProperty("--y", -y);
      const moves = {};
      for (const [name, value] of [[pad.dataset.x, x], [pad.dataset.y, y]]) {
        moves[name.replace("-", "")] = name.startsWith("-") ? -value : value;
      }
      this.hold(pad, moves, true);
    };
    const arrows = {ArrowUp: [pad.dataset.y, 1], ArrowDown: [pad.dataset.y, -1], ArrowRight: [pad.dataset.x, 1], ArrowLeft: [pad.dataset.x, -1]};
    const key = down => event => {
      if (!(event.key in arrows)) return;
      event.preventDefault();
      if (event.repeat) return;
      const [name, way] = arrows[event.key], axis = name.replace("-", "");
      this.hold(`${pad.dataset.x} ${event.key}`, {[axis]: name.startsWith("-") ? -way : way}, down);
    };
    pad.addEventListener("keydown", key(true));
    pad.addEventListener("keyup", key(false));
    pad.addEventListener("blur", () => { for (const arrow in arrows) this.hold(`${pad.dataset.x} ${arrow}`, {}, false); });
    this.grasp(pad, say, () => { knob.style.setProperty("--x", 0); knob.style.setProperty("--y", 0); });
  }

  button(button) {
    const name = button.dataset.hold;
    const pause = name === "pause";
    const moves = pause ? {} : {grip: name.endsWith("+") ? 1 : -1}, end = () => this.hold(name, {}, false);
    this.grasp(button, () => this.hold(button, moves, true), () => {}, !pause);
    button.addEventListener("keydown", event => { if (event.key === "Enter" && !event.repeat) this.hold(name, moves, true); });
    button.addEventListener("keyup", event => event.key === "Enter" && end());
    button.addEventListener("blur", end);
  }

  // A finger takes hold once it has rested (but for a pause, at once): one that passes by scrolls the page and moves nothing.
  grasp(element, down, up, rests = true) {
    let pointer = null, first = null, resting = 0;
    const passes = () => { clearTimeout(resting); first = null; };
    const begins = event => {
      passes();
      if (!this.mine) return;
      pointer = event.pointerId;
      element.setPointerCapture(pointer);
      element.classList.add("held");
      down(event);
    };
    const ends = () => { pointer = null; element.classList.remove("held"); up(); };
    element.addEventListener("pointerdown", event => {
      if (pointer !== null || first || !this.mine) return;
      if (!rests || event.pointerType !== "touch") return begins(event);
      first = event;
      resting = setTimeout(() => begins(first), REST_MS);
    });
    element.addEventListener("pointermove", event => {
      if (event.pointerId === pointer && this.held.has(element)) down(event);
      if (event.pointerId !== first?.pointerId) return;
      if (Math.hypot(event.clientX - first.clientX, event.clientY - first.clientY) > SLIP) passes();
    });
    element.addEventListener("touchmove", event => pointer !== null && event.preventDefault(), {passive: false});  // no scrolling
    element.addEventListener("pointerup", event => {
      if (event.pointerId === first?.pointerId) passes();
      if (event.pointerId === pointer) { ends(); this.hold(element, {}, false); }
    });
    for (const kind of ["pointercancel", "lostpointercapture"]) {
      element.addEventListener(kind, event => {
        if (event.pointerId === first?.pointerId) passes();
        if (event.pointerId === pointer) { ends(); this.cut("the touch was cut"); }
      });
    }
    element.addEventListener("contextmenu", event => event.preventDefault());
  }

  // The hand is gone, and no release came: one word of rest, and silence.
  cut(why) {
    if (!this.held.size) return;
    this.send(true, {});
    this.held.clear();
    this.silentUntil = performance.now() + 600;
    this.lost(why);
  }

  get moves() {
    const sum = {};
    for (const moves of this.held.values()) {
      for (const [axis, value] of Object.entries(moves)) if (this.axes.has(axis)) sum[axis] = (sum[axis] || 0) + value;
    }
    for (const axis in sum) sum[axis] = Math.max(-1, Math.min(1, sum[axis]));
    return sum;
  }

  report() {
    const here = this.mine && !document.hidden && document.hasFocus() && !(performance.now() < this.silentUntil);
    if (here) this.send(this.held.size > 0, this.moves);
  }

  send(held, axes) {
    this.link.say({kind: "motion", seq: this.seq++, shown_at: this.link.shownAt, held, active: this.active, axes});
    this.active = false;
  }
}
