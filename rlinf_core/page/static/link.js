// The connection: one WebSocket, and a stop that does not need it. Reconnecting asks for nothing again.
const AWAY_MS = 1000, AGAIN_MS = 1000;

export class Link {
  constructor(heard) {
    Object.assign(this, {heard, page: 0, seen: 0, heardAt: 0, socket: null});
    this.open();
  }

  open() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
    socket.binaryType = "arraybuffer";
    socket.onmessage = event => {
      this.heardAt = performance.now();
      if (typeof event.data !== "string") return this.heard.frame(event.data);
      const said = JSON.parse(event.data);
      if (said.kind === "you") this.page = said.page;
      if (said.kind === "state") this.seen = said.t;
      this.heard[said.kind](said);
    };
    socket.onclose = event => {
      if (this.socket === socket) this.page = 0;
      this.heard.closed(event.reason);
      setTimeout(() => this.open(), AGAIN_MS);
    };
    this.socket = socket;
  }

  get here() { return this.socket.readyState === WebSocket.OPEN && performance.now() - this.heardAt < AWAY_MS; }

  say(word) { if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(word)); }

  ask(what, more = {}) { this.say({kind: "ask", what, ...more}); }

  // Tried three times; resolves to whether it has arrived.
  async stop() {
    for (let tries = 0; tries < 3; tries++) {
      try {
        const answer = await fetch("/stop", {method: "POST", signal: AbortSignal.timeout(1000)});
        if (answer.ok) return true;
      } catch { /* once more */ }
    }
    return false;
  }
}
