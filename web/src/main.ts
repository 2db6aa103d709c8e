// One module for all places: `mount` for the page, the default export for a notebook (anywidget).

import { App, type Config } from "./app";
import { type EmbeddedDoc, RemoteBackend } from "./sources";
import type { State } from "./state";
import css from "./style.css";
import { HttpTransport, MessageTransport, type WidgetModel } from "./transport";
import type { Backend, Scene } from "./types";

function mount(host: HTMLElement, config: Config, backend: Backend | null): App {
  const root = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  root.adoptedStyleSheets = [sheet];
  const app = new App(config, backend);
  root.appendChild(app.element);
  void app.start();
  return app;
}

interface PageData {
  version: string;
  token: string | null;
  start: Partial<State>;
  path: Scene[];
  docs: EmbeddedDoc[];
}

const host = typeof document === "undefined" ? null : document.getElementById("regard");
const data = host && document.getElementById("regard-data");
if (host && data?.textContent) {
  const page = JSON.parse(data.textContent) as PageData;
  const backend = page.token === null ? null : new RemoteBackend(new HttpTransport(page.token));
  // A frame without an address of its own (srcdoc, data:) cannot write one.
  const useHash = /^(https?|file):$/.test(location.protocol);
  const app = mount(
    host,
    {
      docs: page.docs,
      start: page.start,
      path: page.path,
      useHash,
      ownsKeys: true,
      framed: self !== top && page.token === null,
    },
    backend,
  );
  (globalThis as unknown as { regard: App }).regard = app; // for the curious, at the console
}

export default {
  render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
    const host = document.createElement("div");
    host.className = "regard-page";
    host.dataset["lmSuppressShortcuts"] = "true"; // typing a text is no command to the notebook
    host.style.height = `${Number(model.get("height")) || 640}px`;
    host.style.overflow = "auto"; // a narrow page is a long one: it stays out of the next cell
    el.appendChild(host);
    const live = model.get("live") === true;
    const docs = JSON.parse(String(model.get("docs") ?? "[]")) as EmbeddedDoc[];
    const start = JSON.parse(String(model.get("start") ?? "{}")) as Partial<State>;
    const app = mount(
      host,
      { docs, start, path: [], useHash: false, ownsKeys: false, framed: false },
      live ? new RemoteBackend(new MessageTransport(model)) : null,
    );
    (host as unknown as { regard: App }).regard = app;
    return () => host.remove();
  },
};
