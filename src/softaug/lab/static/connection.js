// One WebSocket to the server: JSON both ways, frames as binary. Reconnects when the server comes back.

const RETRY_MS = 2000;

export class Connection {
  constructor({ hello, onText, onFrame, onState }) {
    Object.assign(this, { hello, onText, onFrame, onState });
    this.ended = false;
    this.connect();
  }

  connect() {
    const address = new URL("ws", location.href.replace(/[?#].*$/, ""));
    address.protocol = "ws:";
    this.socket = new WebSocket(address);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.socket.send(JSON.stringify({ type: "hello", ...this.hello() }));
      this.onState("open");
    };
    this.socket.onmessage = ({ data }) => {
      if (typeof data === "string") {
        const message = JSON.parse(data);
        if (message.fatal) this.ended = true;
        this.onText(message);
      } else {
        this.onFrame(data);
      }
    };
    this.socket.onclose = () => this.closed();
  }

  async closed() {
    if (this.ended) return this.onState("ended");
    this.onState("lost");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    // Is it another server by now, whose token is another one?
    const answer = await fetch("static/lab.css", { cache: "no-store" }).catch(() => null);
    if (answer && answer.status === 404) return this.onState("restarted");
    if (answer && answer.ok) this.connect();
    else this.closed();
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  sendBytes(bytes) {
    if (this.socket.readyState === WebSocket.OPEN && this.socket.bufferedAmount < 200_000) this.socket.send(bytes);
  }
}

// A binary message: length of the header (4 bytes), header, images.
export function parseFrame(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  for (const agent of header.agents) {
    for (const [name, type] of [["scene", "image/jpeg"], ["seen", "image/png"]]) {
      const size = agent[name];
      agent[name] = new Blob([new Uint8Array(buffer, start, size)], { type });
      start += size;
    }
  }
  return header;
}
