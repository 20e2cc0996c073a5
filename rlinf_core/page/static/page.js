// The page: shows what the station says, and asks for what is pressed.
import {Alignment} from "./align.js";
import {Hands} from "./hands.js";
import {Link} from "./link.js";
import {Box, Cameras, curve} from "./views.js";

const $ = id => document.getElementById(id);
const HOLD_MS = 600, NOTE_MS = 6000, DRAW_MS = 95;
const LABEL = {ready: "Ready", success: "Success", failure: "Failure", rerecord: "Once more", discard: "Discard"};
const PHASES = {start: "starting", collect: "collecting demonstrations", sft: "fine-tuning", evaluate_before: "evaluating before",
  online: "improving online", drain: "the learner catches up", evaluate_after: "evaluating after", done: "done"};
const MODE = {evaluate: "Evaluate", train: "Learn", demonstration: "Demonstrate"};  // in the order in which one is preferred
let last = null, curves = null, lease = null, alarm = "", cut = "", drawnAt = 0, chosen = false, spoken = "";

const alignment = new Alignment($("align"), $("views"));
const cameras = new Cameras($("views"), () => link.say({kind: "acknowledgement"}), (figure, place) => alignment.open(figure, place));
const box = new Box($("box"));
const link = new Link({
  you: () => {},
  station: said => {
    document.title = said.station;
    $("name").textContent = said.station;
    lease = said.lease;
    alignment.close();
    cameras.fit(said.cameras, said.aligned);
    box.fit(said.boxes);
    hands.fit(said.axes);
    $("labels").replaceChildren(...said.labels.map(label => button(LABEL[label] || label, label, () => link.ask(label))));
  },
  history: said => { curves = said; draw(); },
  state: show,
  note: said => note(said.text, said.well),
  frame: bytes => cameras.draw(bytes),
  closed: (reason, unanswered) => {
    if (reason) note(`The server closed the connection: ${reason}`, false);
    if (unanswered.length) note(`No answer to: ${unanswered.join(", ")}. Look at the arm before you press it again`, false);
    render();
  },
});
const hands = new Hands(link, why => { cut = why; render(); });

function button(text, label, pressed) {
  const made = Object.assign(document.createElement("button"), {textContent: text, onclick: pressed});
  made.dataset.label = label;
  return made;
}

function note(text, well) {
  const line = Object.assign(document.createElement("p"), {textContent: text, className: well ? "" : "bad"});
  $("notes").prepend(line);
  while ($("notes").children.length > 3) $("notes").lastChild.remove();
  setTimeout(() => line.remove(), well ? NOTE_MS : 2 * NOTE_MS);
}

// Pressed for a while, with a finger or with Enter, so that a touch by chance does nothing.
function held(element, needed, done) {
  let timer = 0;
  const end = () => { clearTimeout(timer); element.classList.remove("holding"); };
  const begin = () => {
    end();  // of another finger, whose timer would be forgotten and arm though nobody holds it
    if (element.disabled) return;
    if (!needed()) return done();
    element.classList.add("holding");
    timer = setTimeout(() => { end(); if (isVisible(element) && !element.disabled) done(); }, HOLD_MS);
  };
  element.addEventListener("pointerdown", begin);
  element.addEventListener("keydown", event => { if (event.key === "Enter" && !event.repeat) begin(); });
  element.addEventListener("keyup", event => { if (event.key === "Enter") end(); });
  for (const kind of ["pointerup", "pointerleave", "pointercancel", "blur"]) element.addEventListener(kind, end);
  return end;
}

const isVisible = element => !element.classList.contains("gone");
const showIf = (id, needed) => $(id).classList.toggle("gone", !needed);

async function stop() {
  $("stop").classList.add("held");
  alarm = await link.stop() ? "" : "THE STOP DID NOT ARRIVE. Use the hardware e-stop.";
  $("stop").classList.remove("held");
  render();
}

$("stop").addEventListener("pointerdown", stop);
$("stop").addEventListener("keydown", event => { if (event.key === "Enter" && !event.repeat) stop(); });
addEventListener("keydown", event => {
  if (event.key === "Enter" && event.repeat) event.preventDefault();  // a key that is held presses a button once
  if (event.code !== "Space") return;
  event.preventDefault();
  if (!event.repeat) stop();
});
addEventListener("keyup", event => event.code === "Space" && event.preventDefault());  // or it presses what has the focus
const noArming = held($("arm"), () => true, () => link.ask("arm"));
held($("controls"), () => last?.holder && last.holder !== link.page, () => link.ask(hands.mine ? "leave" : "take"));
// At the touch itself, as the stop: a finger that slips off is meant too. A click without a touch is the Enter key.
// An arming whose button is still held ends with it.
function disarm() { noArming(); link.ask("disarm"); }
$("disarm").addEventListener("pointerdown", () => $("disarm").disabled || disarm());
$("disarm").onclick = event => event.detail || disarm();
$("release").onclick = () => link.ask("release");
$("reset").onclick = () => link.ask("reset", {cause: last.safety.cause});
$("start").onclick = () => link.ask("start", {mode: $("mode").value});
$("cancel").onclick = () => link.ask("cancel");
$("mode").onchange = () => { chosen = true; render(); };
$("keyed").onchange = () => { hands.keysOn = $("keyed").checked; };
addEventListener("resize", () => { box.said = ""; draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => { cameras.look(); render(); }, 500);

// The station says how it is 20 times a second, for the sake of what is held; half of that is enough to look at.
function show(said) {
  last = said;
  if (performance.now() - drawnAt < DRAW_MS) return;
  drawnAt = performance.now();
  render();
  box.draw(said.arms);
}

// Only what is new: each write costs a layout.
function write(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

function render() {
  const here = link.here && last !== null, mine = here && link.page !== 0 && last.holder === link.page;
  if (hands.mine && !mine && hands.held.size) hands.cut(here ? "another page took the controls" : "the connection was lost");
  hands.mine = mine;
  document.body.classList.toggle("away", !here);
  document.body.classList.toggle("mine", mine);
  write("link", here ? "connected" : "not connected");
  for (const element of document.querySelectorAll("#state button, #episode button, #episode select, #hands button")) {
    able(element, element.id === "disarm" ? here : mine);
  }
  for (const pad of document.querySelectorAll(".pad")) pad.setAttribute("aria-disabled", !mine);
  if (last) describe(here, mine);
  settle();
  announce(here, mine);
}

// One write each time, and of what is new: a button that is disabled and enabled again loses the focus.
const enabled = new Map();
function able(element, is) { enabled.set(element, is); }
function settle() { for (const [element, is] of enabled) if (element.disabled === is) element.disabled = !is; }

function describe(here, mine) {
  const {safety, episode, enable} = last, word = here && last.heard ? safety.state : "UNKNOWN";
  document.body.dataset.state = word;
  write("word", word);
  write("brief", word);
  const [because, next] = reason(word, mine);
  write("why", [because, next && `Next: ${next}`].filter(Boolean).join(" "));
  write("enable", presence(enable));
  write("controls", mine ? "You have the controls" : last.holder ? `Page ${last.holder} has the controls: hold to take them`
    : "Take the controls");
  showIf("arm", safety.state === "DISARMED" || ["new_session", "operator_silent"].includes(safety.cause));
  showIf("disarm", safety.state !== "DISARMED" && safety.state !== "FAULT");
  showIf("release", last.stopped);
  showIf("reset", safety.state === "FAULT");
  able($("reset"), mine && !last.stopped);
  write("playing", last.prompt ? last.prompt.split(/[:,(.]/)[0] : episode.playing ? `${episode.mode}, step ${episode.steps}`
    : episode.last.id ? `last: ${episode.last.success ? "success" : "no success"}, ${episode.last.steps} steps` : "none yet");
  for (const each of $("labels").children) able(each, mine && (each.dataset.label === "ready" ? Boolean(last.prompt) : episode.playing));
  starting(mine);
  const takeover = here && last.heard ? safety.takeover.toLowerCase() : "unknown";
  write("hand", `${takeover} · ${!mine ? "watching" : hands.held.size ? "you command" : "hold to command"}`);
  announceState(word, because, next);
  learning();
}

// The first mode that can be played now, until a person has chosen one; what cannot is disabled, with its reason.
function starting(mine) {
  const {episode} = last, refusals = last.modes || {};
  for (const option of $("mode").options) {
    const refusal = refusals[option.value] || "";
    if (option.disabled !== Boolean(refusal)) option.disabled = Boolean(refusal);
    if (option.title !== refusal) option.title = refusal;
  }
  if (!chosen || refusals[$("mode").value]) {
    const best = Object.keys(MODE).find(mode => !refusals[mode]);
    if (best && $("mode").value !== best && document.activeElement !== $("mode")) $("mode").value = best;
  }
  const blocked = last.director ? "A run starts the episodes."
    : episode.playing ? "An episode is being played." : !last.may_start ? "Start needs an armed arm: hold “Hold to arm” first."
    : refusals[$("mode").value] || "";
  able($("start"), mine && !blocked);
  const cannot = Object.keys(MODE).filter(mode => refusals[mode]), reasons = [...new Set(cannot.map(mode => refusals[mode]))];
  const others = reasons.map(why => `${cannot.filter(mode => refusals[mode] === why).map(mode => MODE[mode]).join(", ")}: ${why}`);
  const text = [!mine ? "Take the controls first." : blocked, ...others].filter(Boolean).join(" ");
  write("hint", text || `${MODE[$("mode").value]}: one episode in the next scene.`);
  if ($("start").title !== blocked) $("start").title = blocked;
}

// Whether somebody is known to be there, and for how long that counts.
function presence(enable) {
  if (!enable.held) return "no person is present: touch anything";
  const left = lease === null ? null : Math.max(0, lease - enable.age);
  return left === null ? "somebody is there" : `a person is present, for ${Math.round(left)} s more`;
}

// Why it stands as it does, and what to do next.
function reason(word, mine) {
  const {state, cause, source} = last.safety;
  if (word === "UNKNOWN") return ["No message comes from the interlock.", "check the arm; then run rlinf status in a terminal."];
  if (state === "ACTIVE" && source !== "operator") return ["The policy commands.", "hold a key or a pad to take over."];
  if (state === "ACTIVE") return mine && hands.held.size ? ["You command.", "let go, and the arm stops."]
    : [last.script ? "The script commands." : "A person commands.", mine ? "hold a key or a pad to take over." : ""];
  if (state === "ARMED") return ["Ready: the next command moves the arm.", last.director ? "the run continues by itself."
    : "start an episode, or hold a key or a pad."];
  const next = state === "DISARMED" ? (mine ? "hold “Hold to arm”." : "take the controls, then hold “Hold to arm”.")
    : state === "FAULT" && last.stopped ? "release the stop, reset, then arm." : last.next;
  return [state === "DISARMED" ? `Nothing moves until it is armed. ${last.why}`.trim() : `${last.why} (${cause})`, next || ""];
}

// A fault, and that nothing is heard, interrupt a screen reader; other states wait until it has spoken.
function announceState(word, because, next) {
  const text = `${word}. ${because}${next ? ` Next: ${next}` : ""}`;
  const urgent = word === "FAULT" || word === "UNKNOWN", key = `${word} ${last.safety.cause} ${urgent ? because : ""}`;
  if (key === spoken) return;
  spoken = key;
  write("spoken", urgent ? text : "");
  write("murmured", urgent ? "" : text);
}

function learning() {
  const {trainer, phase} = last, known = phase.phase !== null && phase.phase !== undefined;
  write("phase", known ? `${PHASES[phase.phase] || phase.phase} · ${phase.done}${phase.total ? ` of ${phase.total}` : ""}` : "");
  write("trainer", trainer.connected ? `${trainer.phase || "connected"}` : "no trainer is connected");
  const waiting = [[trainer.backlog, "to send"], [trainer.set_aside, "refused"]].filter(([count]) => count)
    .map(([count, what]) => `${count} ${what}`);
  if (trainer.spool_full > 0.5) waiting.push(`spool ${Math.round(100 * trainer.spool_full)} % full`);
  const facts = [["policy", last.policy_version >= 0 ? `version ${last.policy_version}, ${last.inference_p50_ms.toFixed(1)} ms` : "none yet"],
    ["learned from", `${trainer.episodes} episodes, ${trainer.updates.toLocaleString("en")} updates`],
    ["recordings", waiting.join(", ") || "none waits"],
    ["the interlock", `held ${last.safety.holds} times, limited ${last.safety.limited}`]];
  const rows = facts.flatMap(([name, value]) => [name, value]).join("\n");
  if ($("facts").dataset.said === rows) return;
  $("facts").dataset.said = rows;
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), {textContent: name}), Object.assign(document.createElement("dd"), {textContent: value})]));
}

function draw() {
  if (!curves) return;
  for (const name of ["success", "intervened"]) {
    const values = curves[name];
    curve(document.querySelector(`[data-curve=${name}]`), values);
    const share = values.length ? `${Math.round(100 * values[values.length - 1])} %` : "–";
    write(name, share);
    document.querySelector(`[data-curve=${name}]`).setAttribute("aria-label",
      `${name === "success" ? "success" : "share that a person commanded"}, ${values.length} episodes: ${values.length ? share : "none yet"}`);
  }
}

function announce(here, mine) {
  if (mine && hands.held.size) cut = "";
  const late = mine && last.late ? `The connection is slow (${Math.round(1000 * last.late)} ms): the page does not forward held controls.` : "";
  const text = alarm || (here ? "" : "Not connected. This does not disarm; an arm that you moved is held. Retrying …")
    || (cut && `Your takeover ended: ${cut}. The arm is held. Take the controls and touch anything to continue.`) || late
    || (here && last.operator) || (here && last.trouble) || "";
  write("banner", text);
  $("banner").hidden = !text;
  $("banner").classList.toggle("loud", Boolean(alarm) || !here);
}
