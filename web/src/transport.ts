// HTTP to the local server, and the messages of a notebook. An answer is bytes, an error is words.

import type { Transport } from "./sources";

export class HttpTransport implements Transport {
  private readonly listeners: ((alive: boolean) => void)[] = [];
  private alive = true;

  constructor(private readonly token: string) {}

  onConnection(listener: (alive: boolean) => void): void {
    this.listeners.push(listener);
  }

  private setAlive(alive: boolean): void {
    if (alive === this.alive) return;
    this.alive = alive;
    for (const listener of this.listeners) listener(alive);
    if (!alive) void this.retry();
  }

  private async retry(): Promise<void> {
    while (!this.alive) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      try {
        const answer = await fetch("api/health", { headers: { "X-Regard-Token": this.token } });
        if (answer.ok) this.setAlive(true);
        else if (answer.status === 403) location.reload(); // another server has the port now: its own words follow
      } catch {
        // Still gone: try again.
      }
    }
  }

  async ask(name: string, params: unknown, body?: ArrayBuffer, signal?: AbortSignal): Promise<ArrayBuffer> {
    const query = encodeURIComponent(JSON.stringify(params));
    const headers: Record<string, string> = { "X-Regard-Token": this.token };
    const short = query.length < 1500 && !body;
    let answer: Response;
    try {
      answer = short
        ? await fetch(`api/${name}?params=${query}`, { headers, signal: signal ?? null })
        : await fetch(`api/${name}`, {
            method: "POST",
            headers: { ...headers, ...(body ? { "X-Regard-Params": query } : {}) },
            body: body ?? JSON.stringify(params),
            signal: signal ?? null,
          });
    } catch (error) {
      if (error instanceof DOMException) throw error;
      this.setAlive(false);
      throw new Error(
        "The server is gone. Start it again with `regard look`; this page reconnects by itself.",
      );
    }
    this.setAlive(true);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.arrayBuffer();
  }
}

/** What anywidget gives a front end. */
export interface WidgetModel {
  get(name: string): unknown;
  send(content: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
  on(
    event: "msg:custom",
    handler: (content: { id: string; error?: string }, buffers: DataView[]) => void,
  ): void;
}

export class MessageTransport implements Transport {
  private readonly waiting = new Map<
    string,
    { resolve: (bytes: ArrayBuffer) => void; reject: (error: Error) => void }
  >();
  private readonly own = Math.random().toString(36).slice(2); // a notebook may show one widget twice
  private last = 0;

  constructor(private readonly model: WidgetModel) {
    model.on("msg:custom", (content, buffers) => {
      const waiting = this.waiting.get(content.id);
      if (!waiting) return;
      this.waiting.delete(content.id);
      const view = buffers[0];
      if (content.error !== undefined || !view)
        waiting.reject(new Error(content.error ?? "the kernel sent an empty answer"));
      else
        waiting.resolve(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) as ArrayBuffer);
    });
  }

  onConnection(): void {
    // The notebook itself says when its kernel is gone.
  }

  ask(name: string, params: unknown, body?: ArrayBuffer, signal?: AbortSignal): Promise<ArrayBuffer> {
    const id = `${this.own}-${++this.last}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        this.waiting.delete(id);
        this.model.send({ cancel: id });
        reject(new DOMException("no longer looked at", "AbortError"));
      });
      this.model.send({ id, name, params }, undefined, body ? [body] : []);
    });
  }
}
